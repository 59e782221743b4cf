#!/bin/sh
# Runs in the VM of `cargo xtask bench zero-copy`. Each line of standard input is a command of this
# script: one of the functions below with its arguments. After each command, the script prints its
# exit code in a line `done CODE`.
#
# The NIC zc0 is connected to the program that measures. That program plays the router
# (02:00:00:00:02:fe) and the backends.

set -u
PATH=/usr/bin:/usr/sbin:/bin:/sbin
process=
nic=

# Sets addresses, routes and neighbors, so that no packet has to wait for ARP or neighbor discovery.
prepare() {
  hostname lb1; mkdir /run/sluicegate
  sysctl -qw kernel.kptr_restrict=0 net.core.bpf_jit_enable=1 net.core.bpf_jit_kallsyms=1 net.core.bpf_jit_harden=0 \
    net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  for f in /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $f; done
  for f in /proc/sys/net/ipv6/conf/*/accept_ra /proc/sys/net/ipv6/conf/*/mc_forwarding; do echo 0 2>/dev/null > $f; done
  # Forwarding by the kernel is cheaper without GRO, and af-packet requires it.
  ethtool -K zc0 gro off
  # QEMU's igb drops the frames of a burst that do not fit into the receive ring.
  ! ethtool -i zc0 | grep -q igb || ethtool -G zc0 rx 2048 tx 2048
  ip address add 192.0.2.1/24 dev zc0 && ip -6 address add 2001:db8:2::1/64 dev zc0 nodad
  for n in 11 12 13 14 254; do
    mac=02:00:00:00:02:$(printf %02x $n)
    ip neighbor replace 192.0.2.$n lladdr $mac dev zc0 nud permanent
    ip -6 neighbor replace 2001:db8:2::$n lladdr $mac dev zc0 nud permanent
  done
  ip route add default via 192.0.2.254 && ip -6 route add default via 2001:db8:2::254 dev zc0 && steady
}

# sluicegate FILE: runs the load balancer with a configuration file.
sluicegate() {
  RUST_LOG=info /usr/bin/sluicegate run --config $1 > /tmp/log 2>&1 & process=$!
  for i in $(seq 300); do
    # The first health checks, next hops and MTU probes end within seconds after the start.
    grep -q 'startup completed' /tmp/log && steady && sleep 5 && return
    kill -0 $process 2>/dev/null || break
    sleep 0.1
  done
  cat /tmp/log; return 1
}

# run PROGRAM ARGUMENTS: runs a forwarder that prints a line when it is ready.
run() {
  "$@" > /tmp/log 2>&1 & process=$!
  for i in $(seq 600); do
    [ -s /tmp/log ] && steady && return
    kill -0 $process 2>/dev/null || break
    sleep 0.1
  done
  cat /tmp/log; return 1
}

xdp_swap() { ip link set dev zc0 xdpdrv object /measure/swap.bpf.o section xdp && steady; }

forward() {
  ip route add 203.0.113.10/32 via 192.0.2.11 && ip -6 route add 2001:db8:113::10/128 via 2001:db8:2::11
}

nftables() {
  nft -f /measure/rules.nft && sysctl -qw net.netfilter.nf_conntrack_max=1000000 &&
    echo 262144 > /sys/module/nf_conntrack/parameters/hashsize
}

# ipvs ipip|gre: the scheduler `mh` implements Maglev hashing.
ipvs() {
  more=; [ $1 = gre ] && more='--tun-type gre --tun-nocsum'
  modprobe ip_vs_mh
  for protocol in -u -t; do
    ipvsadm -A $protocol 203.0.113.10:80 -s mh -b mh-port,mh-fallback || return
    for n in 11 12 13 14; do
      ipvsadm -a $protocol 203.0.113.10:80 -r 192.0.2.$n -i $more || return
    done
  done
  ip address add 203.0.113.10/32 dev lo
}

# Katran's program keeps its flows in a table for each processor.
katran() {
  bpftool prog load /measure/katran.bpf.o /sys/fs/bpf/program type xdp pinmaps /sys/fs/bpf &&
    sh /measure/katran.sh && bpftool batch file /measure/katran.maps > /dev/null &&
    ip link set dev zc0 xdpdrv pinned /sys/fs/bpf/program && steady
}

# DPDK takes the NIC away from the kernel. The VM has no IOMMU, so DPDK uses physical addresses.
testpmd() {
  nic=$(basename $(readlink /sys/class/net/zc0/device))
  mkdir -p /var/run /dev/hugepages && echo 256 > /proc/sys/vm/nr_hugepages && mount -t hugetlbfs none /dev/hugepages &&
    echo uio_pci_generic > /sys/bus/pci/devices/$nic/driver_override &&
    echo $nic > /sys/bus/pci/devices/$nic/driver/unbind && echo $nic > /sys/bus/pci/drivers_probe || return
  dpdk-testpmd -a $nic -d /measure/librte_net_e1000.so -d /measure/librte_mempool_ring.so --lcores=0@0,1@0 \
    --no-telemetry -- --forward-mode=macswap --no-lsc-interrupt --disable-link-check --rxd=4096 --txd=4096 \
    --total-num-mbufs=16384 --stats-period=1 > /tmp/log 2>&1 & process=$!
  for i in $(seq 600); do
    grep -q 'NIC statistics' /tmp/log && sleep 2 && return
    kill -0 $process 2>/dev/null || break
    sleep 0.1
  done
  cat /tmp/log; return 1
}

# Undoes what the previous functions did.
stop() {
  [ -z "$process" ] || { kill -9 $process; wait $process 2>/dev/null; }
  process=
  [ -z "$nic" ] || return 0
  ip link set dev zc0 xdp off
  rm -f /sys/fs/bpf/*
  ! command -v nft > /dev/null || nft flush ruleset
  ! command -v ipvsadm > /dev/null || ipvsadm -C 2>/dev/null
  ip address delete 203.0.113.10/32 dev lo 2>/dev/null
  ip route delete 203.0.113.10/32 2>/dev/null; ip -6 route delete 2001:db8:113::10/128 2>/dev/null
  # Without their modules, IPVS and nftables forget the flows.
  rmmod ip_vs_mh ip_vs nft_ct nft_chain_nat nft_nat nf_nat nf_conntrack 2>/dev/null
  rm -f /tmp/log
  steady
}

# Waits until the link of the NIC has been up for a second. Many NICs drop it when XDP is attached.
steady() {
  up=0
  for i in $(seq 300); do
    sleep 0.1
    [ "$(cat /sys/class/net/zc0/carrier 2>/dev/null)" = 1 ] && up=$((up + 1)) || up=0
    [ $up -lt 10 ] || return 0
  done
  return 1
}

# Writes the kernel's symbols and the mappings of the measured process to the disk.
symbols() {
  { grep -v ' [bBdDrRaAnN] ' /proc/kallsyms; echo; [ -z "$process" ] || cat /proc/$process/maps; echo; } > /dev/vda
  sync
}

counters() { ethtool -S zc0 | grep -iE 'drop|miss|no_buf' | grep -v ': 0$'; tail -n 5 /tmp/log 2>/dev/null; return 0; }

# Before this point, the serial port is not open, and the VM would lose commands.
echo 'done 0'
while read -r line; do
  eval "$line"
  echo "done $?"
done
