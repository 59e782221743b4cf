# What stands before the commands of docs/quick-start.md. $1: a folder with bin/systemctl; $2: the program; $3: config/.
# /run, /usr/bin, the folder to work in, and each host's /etc and /run are this script's own.
dir=$1
mkdir "$dir/w"
mount -t tmpfs none "$dir/w"
mount -t tmpfs none /run
mkdir /run/netns "$dir/w/here"
mknod -m 0666 "$dir/w/tun" c 10 200 # as udev has it
mount --bind "$dir/w/tun" /dev/net/tun
over() {
  mkdir -p "$dir/w/$1/up" "$dir/w/$1/work"
  echo "mount -t overlay -o lowerdir=$2,upperdir=$dir/w/$1/up,workdir=$dir/w/$1/work none $2"
}
eval "$(over bin /usr/bin)"
export PATH="$dir/bin:$PATH"
cd "$dir/w/here"
cp "$2" sluicegate
cp -r "$3" config
# Runs what stands on standard input on a host.
on() {
  cat > "$dir/$1.commands"
  ip netns exec "$1" unshare --uts --mount \
    sh -euxc "hostname $1; $(over "$1" /etc); mount -t tmpfs none /run; exec sh -eux $dir/$1.commands"
}
