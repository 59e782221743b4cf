#!/bin/sh
# Replaces systemctl in tests. The commands `enable --now`, `start`, `restart`, `reload`,
# `is-active` and `disable --now` process units as systemd does. Supported settings are the user,
# capabilities, credentials, the runtime folder, the environment file, the limit on locked memory,
# and the notification socket with MAINPID=. Each unit has a log file in the folder of this script.
set -eu
dir=$(dirname "$0")
setting() { sed -n "s/^$1=//p" "$unit"; }
# Selects a unit, with or without the suffix `.service`. A unit in /etc takes precedence over one of
# a package.
choose() {
  name=${1%.service}
  unit=/etc/systemd/system/$name.service
  [ -e "$unit" ] || unit=/usr/lib/systemd/system/$name.service
  pid=/run/$name.pid
}
# A process that has ended may still be a zombie.
is_active() { [ -e "$pid" ] && grep -q '^State:.[^Z]' "/proc/$(cat "$pid")/status" 2> /dev/null; }
stop() {
  if is_active; then
    kill "$(cat "$pid")"
    while is_active; do sleep 0.1; done
  fi
  [ ! -e "$pid.listener" ] || kill "$(cat "$pid.listener")"
  rm -f "$pid" "$pid.listener" "$pid.notify"
}
# The service can change its main process with MAINPID=.
listen() {
  export NOTIFY_SOCKET="$pid.notify"
  perl -MSocket -e '
    my ($name, $pid) = @ARGV;
    socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die $!;
    bind($socket, pack_sockaddr_un($name)) && chmod(0666, $name) or die $!;
    if (my $child = fork) { print $child; exit }
    while (defined recv($socket, my $message, 4096, 0)) {
      next unless $message =~ /^MAINPID=(\d+)$/m;
      open(my $file, ">", $pid) or die $!;
      print $file "$1\n";
      close($file) or die $!;
    }' "$NOTIFY_SOCKET" "$pid" < /dev/null > "$pid.listener"
}
start() {
  user=$(setting User)
  user=${user:-nobody}
  bounds=-all,$(setting CapabilityBoundingSet | tr '[:upper:]' '[:lower:]' | sed 's/cap_/+/g; s/ /,/g')
  ambient=-all,$(setting AmbientCapabilities | tr '[:upper:]' '[:lower:]' | sed 's/cap_/+/g; s/ /,/g')
  for file in $(setting EnvironmentFile); do
    while IFS='=' read -r name value; do export "$name=$value"; done < "$file"
  done
  for folder in $(setting RuntimeDirectory); do install -d -o "$user" "/run/$folder"; done
  for credential in $(setting LoadCredential); do
    export CREDENTIALS_DIRECTORY=/run/credentials
    install -d -o "$user" -m 0700 /run/credentials
    install -o "$user" -m 0400 "${credential#*:}" "/run/credentials/${credential%%:*}"
  done
  # Locked memory is counted per user, including other processes of the same user. If
  # CAP_SYS_RESOURCE is missing, the limit stays unchanged.
  [ "$(setting LimitMEMLOCK)" != infinity ] || ulimit -l unlimited 2> /dev/null || true
  [ "$(setting Type)" != notify ] || listen
  eval "set -- $(setting ExecStart)" # words are split as systemd splits $NAME
  setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --no-new-privs --inh-caps "$ambient" \
    --ambient-caps "$ambient" --bounding-set "$bounds" "$@" >> "$dir/$(basename "$unit").log" 2>&1 &
  echo $! > "$pid"
}
verb=
for word in "$@"; do
  case $word in
    -*) ;; # options are ignored: commands take effect at once and do not prompt
    *) if [ -z "$verb" ]; then verb=$word; else
      choose "$word"
      case $verb in
        enable) start ;;
        start | restart) stop; start ;; # `start` follows a process that has exited by itself
        reload) kill -HUP "$(cat "$pid")" ;;
        is-active) is_active ;;
        disable) stop ;;
      esac
    fi ;;
  esac
done
