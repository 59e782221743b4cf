# This file is sourced by bare-root and try-packages. It defines the function `minbase ROOT
# [OPTION...]`, which creates a minimal Debian root with the release and the package mirror of this
# machine. The options are passed to debootstrap. The function also exports the proxy settings of
# apt.
minbase() {
  . /etc/os-release
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' \
    "Codename: $VERSION_CODENAME" | head -n 1)
  [ -n "$mirror" ] || { echo "apt has no package lists yet: run apt-get update first" >&2; exit 1; }
  eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
  [ -z "${http_proxy-}" ] || export http_proxy
  [ -z "${https_proxy-}" ] || export https_proxy
  minbase_root=$1; shift
  echo "minbase of $VERSION_CODENAME" >&2
  debootstrap --variant=minbase "$@" "$VERSION_CODENAME" "$minbase_root" "$mirror" > "$minbase_root.log" 2>&1 ||
    { cat "$minbase_root.log" >&2; exit 1; }
}
