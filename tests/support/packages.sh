# Sourced by tests/run and client/examples/quickstart: installs what is missing of the groups in
# support/packages. Looks with dpkg-query first, so that a machine which has all of it needs no
# network. Says on stdout what it did; returns non-zero with a reason on stderr.

packages_list="$(dirname "${BASH_SOURCE[0]}")/packages"

# Prints the packages of the groups named as arguments that are not installed.
packages_missing() {
  local group package name status
  local -A wanted=()
  while read -r group package; do
    [[ " $* " == *" $group "* ]] && wanted[$package]=1
  done < <(grep -v '^#' "$packages_list")
  # A package unknown to dpkg is a line on stderr and a failing status, and simply stays wanted.
  while read -r status name; do
    [[ $status == ii ]] && unset "wanted[$name]"
  done < <(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${!wanted[@]}" 2>/dev/null)
  ((${#wanted[@]} == 0)) || printf '%s\n' "${!wanted[@]}" | sort
}

packages_install() {
  if ! command -v dpkg-query >/dev/null; then
    echo "packages: this is no Debian system; install what tests/support/packages names" >&2
    return 1
  fi
  local missing
  mapfile -t missing < <(packages_missing "$@")
  if ((${#missing[@]} == 0)); then
    echo "nothing missing"
    return 0
  fi
  if ((EUID != 0)); then
    echo "packages: missing, and only root can install them:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "installing ${#missing[@]} packages: ${missing[*]}"
  local log apt=(apt-get -q -y -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
  log=$(mktemp) || return 1
  if ! { "${apt[@]}" update &&
         DEBIAN_FRONTEND=noninteractive "${apt[@]}" install --no-install-recommends "${missing[@]}"
       } >"$log" 2>&1 </dev/null; then
    echo "packages: apt-get failed; its last lines:" >&2
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
