#!/bin/sh
# systemctl's stand-in: `enable --now`, `restart`, `reload`, `is-active` and `disable --now` do with units what systemd does with
# them: the user, the capabilities, the credentials, the runtime folder, the environment file, the limit of locked memory, the socket
# for messages, of which it hears MAINPID=. A unit's log is beside it.
set -eu
dir=$(dirname "$0")
setting() { sed -n "s/^$1=//p" "$unit"; }
# The unit that is named, with `.service` or without; one of /etc comes before a package's.
choose() {
  name=${1%.service}
  unit=/etc/systemd/system/$name.service
  [ -e "$unit" ] || unit=/usr/lib/systemd/system/$name.service
  pid=/run/$name.pid
}
# One that has ended may still wait for its parent.
is_active() { [ -e "$pid" ] && grep -q '^State:.[^Z]' "/proc/$(cat "$pid")/status" 2> /dev/null; }
stop() {
  if is_active; then
    kill "$(cat "$pid")"
    while is_active; do sleep 0.1; done
  fi
  [ ! -e "$pid.listener" ] || kill "$(cat "$pid.listener")"
  rm -f "$pid" "$pid.listener" "$pid.notify"
}
# Whoever the service names by MAINPID= is its process from then on.
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
  # What is locked counts by user, and so with what others of the same user have. Without CAP_SYS_RESOURCE it stays as it is.
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
    -*) ;; # every order takes effect at once, and nothing is asked
    *) if [ -z "$verb" ]; then verb=$word; else
      choose "$word"
      case $verb in
        enable) start ;;
        restart) stop; start ;;
        reload) kill -HUP "$(cat "$pid")" ;;
        is-active) is_active ;;
        disable) stop ;;
      esac
    fi ;;
  esac
done
