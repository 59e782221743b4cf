# Prepares a private file system for the commands of the tutorials, docs/tutorial/*.md.
#
# The arguments are a folder that contains bin/systemctl, the program, and the folder config/. The
# script has private versions of /run, /usr/bin, the working folder, and each host's /etc and /run.
dir=$1
mkdir "$dir/w"
mount -t tmpfs none "$dir/w"
mount -t tmpfs none /run
mkdir /run/netns "$dir/w/here"
mknod -m 0666 "$dir/w/tun" c 10 200 # the mode that udev sets
mount --bind "$dir/w/tun" /dev/net/tun
# Mounts at $3 a private version of the folder $2.
over() {
  mkdir -p "$dir/w/$1/up" "$dir/w/$1/work"
  mount -t overlay -o "lowerdir=$2,upperdir=$dir/w/$1/up,workdir=$dir/w/$1/work" none "$3"
}
over bin /usr/bin /usr/bin
export PATH="$dir/bin:$PATH"
cd "$dir/w/here"
cp "$2" sluicegate
cp "$3/sluicegate.service" "$3/sluicegate-decap.service" "$3/sluicegate.sysusers" "$3/alerts.yml" "$3/alerts-probe.yml" .
# Runs the commands from standard input on a host. A host keeps its /etc and /run between calls.
on() {
  if [ ! -e "$dir/w/$1/etc" ]; then
    mkdir -p "$dir/w/$1/etc" "$dir/w/$1/run"
    over "$1" /etc "$dir/w/$1/etc"
  fi
  cat > "$dir/$1.commands"
  ip netns exec "$1" unshare --uts --mount sh -euxc \
    "hostname $1; mount --bind $dir/w/$1/etc /etc; mount --bind $dir/w/$1/run /run; exec sh -eux $dir/$1.commands"
}
