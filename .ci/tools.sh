# shellcheck shell=bash
# What the tests need, and how to get it. Sourced by ./test; nothing here runs by itself.
# On Debian 12 with Rust and git, `setup` installs the rest; where it may not, it says what to install.

# COMMAND, oldest version that will do, Debian packages that bring it. Debian's own version is not
# pinned: a patch level vanishes from the mirrors when the next one appears.
tools='
git       2.31  git
gcc       10.0  gcc libc6-dev
python3   3.9   python3
sqlite3   3.34  sqlite3
strace    5.10  strace
faketime  0.9   faketime
valgrind  3.16  valgrind
flock     2.36  util-linux
script    2.36  bsdutils
man       2.9   man-db
setpriv   2.33  util-linux
redis-server                         7.0   redis-server
/usr/sbin/pgbouncer                  1.18  pgbouncer
/usr/lib/postgresql/15/bin/postgres  15.0  postgresql-15
/usr/lib/postgresql/15/bin/psql      15.0  postgresql-client-15
node      18.0  nodejs
npm       9.0   npm
chromium  120   chromium
'

# Built from source, so pinned exactly.
cargo_deny_version=0.20.2

# have COMMAND OLDEST: it is installed, and new enough by its own word.
have() {
    local said
    command -v "$1" >/dev/null || return 1
    said=$("$1" --version 2>&1 | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)
    printf '%s\n%s\n' "$2" "$said" | sort --version-sort --check=quiet
}

# lacking: the commands that are missing or too old. Lines of COMMAND OLDEST PACKAGES.
lacking() {
    local command oldest packages
    while read -r command oldest packages; do
        [ -n "$command" ] || continue
        have "$command" "$oldest" || echo "$command $oldest $packages"
    done <<<"$tools"
    if command -v gcc >/dev/null && ! gcc -E -x c -o /dev/null - <<<'#include <stdio.h>' 2>/dev/null; then
        echo "libc-headers - libc6-dev"
    fi
    openssl version >/dev/null 2>&1 || echo "openssl - openssl"
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo "python3-venv - python3-venv"
}

# as_root COMMAND...: as root, or by a sudo that asks nothing; fails otherwise.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n -- "$@"
    fi
}

# may_install: whether `install_packages` could install what is lacking; says what to install where not.
may_install() {
    local missing
    missing=$(lacking)
    if [ -z "$missing" ] || { command -v apt-get >/dev/null && as_root true 2>/dev/null; }; then return 0; fi
    echo "test: missing or too old: $(names "$missing")" >&2
    echo "test: install it as root, then run ./test again:  apt-get install $(packages "$missing")" >&2
    return 1
}

# names LINES, packages LINES: of what `lacking` printed, the commands and what brings them.
names() { cut -d ' ' -f 1,2 <<<"$1" | paste -s -d ,; }
packages() { cut -d ' ' -f 3- <<<"$1" | tr ' ' '\n' | sort -u | paste -s -d ' '; }

# install_packages LOG: installs what `lacking` names.
install_packages() {
    local missing
    missing=$(lacking)
    [ -n "$missing" ] || return 0
    echo "== setup      apt-get install $(packages "$missing")"
    {
        # Runlevel 1: no server is started by its package; the tests start their own.
        # shellcheck disable=SC2046
        as_root timeout 300 apt-get update &&
            as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 900 \
                apt-get install --yes --no-install-recommends $(packages "$missing")
    } >>"$1" 2>&1 </dev/null || {
        tail -n 30 "$1"
        echo "test: that did not work" >&2
        return 1
    }
    missing=$(lacking)
    [ -z "$missing" ] || {
        echo "test: still missing or too old: $(names "$missing")" >&2
        return 1
    }
}

# check_rust: cargo with rustfmt and clippy.
check_rust() {
    command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
    local part
    for part in cargo cargo-fmt clippy-driver; do
        "$part" --version >/dev/null 2>&1 || {
            echo "test: $part is missing; install Rust with the components rustfmt and clippy" >&2
            return 1
        }
    done
}

# fetch_crates LOG: the locked dependencies; from then on no cargo command uses the network.
fetch_crates() {
    cargo fetch --locked --offline >/dev/null 2>&1 || patiently 900 cargo fetch --locked >>"$1" 2>&1 || {
        tail -n 30 "$1"
        echo "test: cargo fetch --locked failed" >&2
        return 1
    }
}

# patiently SECONDS COMMAND...: no longer than that. For a shell in the background: what ends the shell ends that as well.
patiently() {
    local status
    timeout --kill-after=20 "$@" </dev/null &
    trap "kill $! 2>/dev/null" TERM # handed on by timeout(1) to all that it started
    wait $!
    status=$?
    [ "$status" -le 128 ] || wait $!
    return "$status"
}

# install_cargo_deny ROOT LOG: unless that very version is there already, on PATH or under ROOT.
# Not optimised, nor is the C in it: it builds in a minute instead of four, and checks in a second all the same.
install_cargo_deny() {
    local wanted="cargo-deny $cargo_deny_version"
    [ "$(PATH=$1/bin:$PATH cargo-deny --version 2>/dev/null)" != "$wanted" ] || return 0
    echo "== setup      $wanted from source, once; about a minute"
    CFLAGS=-O0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=2 \
        patiently 1500 cargo install --locked --version "$cargo_deny_version" \
        --root "$1" --target-dir "$1/build" cargo-deny >>"$2" 2>&1 || {
        tail -n 30 "$2"
        echo "test: could not install $wanted" >&2
        return 1
    }
    rm -rf "$1/build"
}

# install_servers LOG: those that no Debian package brings; nothing if they are there already.
install_servers() {
    patiently 900 scripts/servers install >>"$1" 2>&1 || {
        tail -n 30 "$1"
        echo "test: scripts/servers install failed" >&2
        return 1
    }
}

# setup LOG: what is needed to compile. A package manager is not ended half way: whoever interrupts waits for it.
setup() {
    : >"$1"
    check_rust && may_install || return
    if [[ $'\n'$(lacking) == *$'\n'@(gcc|libc-headers)\ * ]]; then install_packages "$1" || return; fi
    fetch_crates "$1" &
    children=($!)
    local status=0
    wait "${children[0]}" || status=$?
    children=()
    return "$status"
}

# setup_rest ROOT LOG: what else the tests need, for a shell in the background: waiting for a network costs nothing
# beside what compiles.
setup_rest() {
    local good=0 stopped='' going=() child
    trap '' HUP # whoever started us hands it on as TERM
    trap 'stopped=1; kill "${going[@]}" 2>/dev/null' TERM # during the package manager: after it
    install_cargo_deny "$1" "$2" &
    going+=($!)
    if [ -z "$stopped" ] && install_packages "$2" && [ -z "$stopped" ]; then
        install_servers "$2" &
        going+=($!)
    else
        good=1
        kill "${going[@]}" 2>/dev/null
    fi
    for child in "${going[@]}"; do
        wait "$child" || good=1
        [ -z "$stopped" ] || kill "${going[@]}" 2>/dev/null # one that was begun in that moment
    done
    wait
    return "$good"
}
