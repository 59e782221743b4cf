# Prepares a private file system for the commands of the tutorials, docs/tutorial/*.md.
#
# The argument is a folder that contains bin/systemctl, the program, and the folder config/. The
# script has private versions of /run, /usr/bin, the working folder, and each host's /etc and /run.
dir=$1
mkdir "$dir/w"
mount -t tmpfs none "$dir/w"
mount -t tmpfs none /run
mkdir /run/netns "$dir/w/here"
mknod -m 0666 "$dir/w/tun" c 10 200 # the mode that udev sets
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
# Runs the commands from standard input on a host.
on() {
  cat > "$dir/$1.commands"
  ip netns exec "$1" unshare --uts --mount \
    sh -euxc "hostname $1; $(over "$1" /etc); mount -t tmpfs none /run; exec sh -eux $dir/$1.commands"
}
