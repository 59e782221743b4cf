#!/bin/sh
# systemctl's stand-in: `enable --now UNIT` does with this repository's units what systemd does with them: the user, the
# capabilities, the credentials, the runtime folder, the environment file. Its log is beside it.
set -eu
[ "$1" = enable ] || exit 0
unit=/etc/systemd/system/$3.service
setting() { sed -n "s/^$1=//p" "$unit"; }
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
eval "set -- $(setting ExecStart)" # words are split as systemd splits $NAME
setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --no-new-privs --inh-caps "$ambient" \
  --ambient-caps "$ambient" --bounding-set "$bounds" "$@" >> "$(dirname "$0")/$(basename "$unit").log" 2>&1 &
