#!/bin/bash
# run.sh DEBS WORK: the packages in DEBS in a Debian that boots under systemd-nspawn, with a network of its own. Installs
# them, serves frames, breaks and mends things, purges, and prints a row for each thing that was shown. Exit 0 when every
# row holds. Needs root, systemd-nspawn, debootstrap (once; the base is kept in WORK/base). SUITE, MIRROR as debootstrap's.
set -u
debs=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && work=$(cd "$2" && pwd)
root=$work/root base=$work/base nspawn= leader= failed=0 shown=0

# ---- the machine -----------------------------------------------------------------------------------------------------
die() { echo "systemd: $*" >&2; exit 1; }

make_base() {
    [ -e "$base/.whole" ] && return
    rm -rf "$base"
    debootstrap --variant=minbase --include=systemd,dbus,libpam-systemd "${SUITE:-bookworm}" "$base" \
        "${MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 || { tail "$work/debootstrap.log"; die "no Debian root"; }
    touch "$base/.whole"
}

# A fresh root with our packages in /debs; what they depend on is fetched before the machine, which has no network, boots.
make_root() {
    rm -rf "$root" && cp -a --reflink=auto "$base" "$root" && mkdir "$root/debs" && cp "$debs"/*.deb "$root/debs/" || die "no packages in $debs"
    rm -f "$root"/debs/*-dbgsym_*
    chroot "$root" sh -c 'apt-get update -qq && apt-get install -qq -y --no-install-recommends --download-only /debs/*.deb' \
        >"$work/fetch.log" 2>&1 || { tail "$work/fetch.log"; die "the packages' dependencies cannot be fetched"; }
}

boot() {
    systemd-nspawn -q -D "$root" --register=no --keep-unit --private-network -b </dev/null >"$work/boot.log" 2>&1 &
    nspawn=$!
    for _ in $(seq 300); do
        leader=$(cat "/proc/$nspawn/task/$nspawn/children" 2>/dev/null | awk '{print $1}')
        [ -n "$leader" ] && in_machine systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded' && return
        kill -0 $nspawn 2>/dev/null || break
        sleep 0.2
    done
    tail -20 "$work/boot.log"
    die "the machine does not boot"
}

in_machine() {
    nsenter -t "$leader" -m -u -i -n -p -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
}
sh_in() { in_machine sh -c "$1"; }

halt() {
    [ -n "$leader" ] && kill -RTMIN+4 "$leader" 2>/dev/null # poweroff
    for _ in $(seq 100); do kill -0 $nspawn 2>/dev/null || return; sleep 0.1; done
    kill -9 $nspawn 2>/dev/null
}
trap halt EXIT

# ---- rows ------------------------------------------------------------------------------------------------------------
# row WHAT COMMAND...: holds when the command succeeds; its last line of output stands in the row.
row() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then state=ok; else state=FAILED failed=$((failed + 1)); fi
    shown=$((shown + 1))
    printf '%-6s %-58s %s\n' "$state" "$what" "$(printf '%s' "$said" | tail -1 | cut -c1-110)"
    [ $state = ok ] || { printf '%s\n' "$said" | tail -15 | sed 's/^/         /'; sh_in 'journalctl -u nctd -n 8 -o cat --no-pager' | sed 's/^/       | /'; }
}
show() { in_machine systemctl show "${2:-nctd}" -p "$1" --value; }
is() { local got; got=$(show "$1" "${3:-nctd}"); echo "$1=$got"; [ "$got" = "$2" ]; }
has() { local got; got=$(show "$1"); echo "$got"; [[ $got == *"$2"* ]]; }
within() { # SECONDS COMMAND...: until it succeeds
    local end=$((SECONDS + $1)); shift
    until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.2; done
}
as() { local user=$1; shift; in_machine setpriv --reuid "$user" --regid "$user" --init-groups "$@"; }
files() { sh_in "find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/log -o -path /var/cache \
    -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd/random-seed -o -path /debs \) -prune -o -print | \
    grep -vE '^/etc/(ld.so.cache|(passwd|group|shadow|gshadow|subuid|subgid)-)|/var/lib/systemd/(timers|catalog)' | sort"; }

# ---- what is shown ---------------------------------------------------------------------------------------------------
install_packages() { sh_in 'apt-get install -qq -y --no-install-recommends /debs/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }; dpkg -l | grep -cE "^ii  (nct|libnct)"'; }
user_made() { sh_in 'getent passwd nctd && stat -c %U:%G:%a /run/nctd /var/lib/nctd | sort | uniq -c | grep -x " *2 nctd:nctd:750"'; }
verify() { sh_in 'for u in nctd.service nctd@a.service; do systemd-analyze verify --man=no $u; done' 2>&1 | grep . && return 1; echo "no warning"; }
exposure() { sh_in "systemd-analyze security --no-pager --threshold=$1 nctd.service | grep Overall"; }
stranger_refused() { as bob nct ping -k 1 --timeout 2; local code=$?; echo "exit $code"; return $((code != 69)); }
stranger_told() { as bob nct ping -k 1 --timeout 2 2>&1 | grep -iE 'permission|group'; }
sound_file() { sh_in 'cd /tmp && nct model new m.safetensors --in-channels 2 --out-channels 4 --kernel-size 3 --num-groups 2 --padding 1 &&
    head -c 64000 /usr/bin/nctd* /usr/sbin/nctd | nct run --model m.safetensors --raw i16 --rate 8000 --channels 2 - -o r.npy && stat -c "%s bytes" r.npy'; }
load() { sh_in 'nct bench -R 200 -s 8 -t 480 -d 3 >/tmp/bench.log 2>&1; code=$?; grep -iE "ledger|sent|answered" /tmp/bench.log; exit $code'; }
killed_and_back() {
    local before after
    before=$(show MainPID)
    kill_main 9
    within 20 is_new "$before" >/dev/null && within 20 sh_in 'nct ping -k 1 --timeout 5 >/dev/null' && after=$(show MainPID) &&
        echo "pid $before -> $after, NRestarts $(show NRestarts)"
}
kill_main() { local pid; pid=$(show MainPID); [ "${pid:-0}" != 0 ] && sh_in "kill -$1 $pid"; }
is_new() { local now; now=$(show MainPID); [ "$now" != 0 ] && [ "$now" != "$1" ] && [ "$(show ActiveState)" = active ]; }
client_survives() { # a client that goes on over whatever $1 does
    sh_in 'nct ping -k 30 -i 0.2 --timeout 10 >/tmp/ping.log 2>&1; echo $? >/tmp/ping.code' &
    local job=$!
    sleep 1.5
    "$@"
    wait $job
    sh_in 'tail -1 /tmp/ping.log; exit $(cat /tmp/ping.code)'
}
write_conf() { printf '%s\n' "$1" | in_machine tee /etc/nctd/conf.d/test.conf >/dev/null; }
reload() { in_machine systemctl reload nctd && within 15 is SubState running; }
reload_good() { # the changed level is in force: debug lines appear
    local pid; pid=$(show MainPID)
    write_conf $'[daemon]\nlog_level = debug\n[batch]\nmax_frames = 3' && reload && has StatusText applied && [ "$pid" = "$(show MainPID)" ]
}
reload_bad() {
    local pid; pid=$(show MainPID)
    write_conf $'[batch]\nmax_framez = 3' && reload && has StatusText refused && [ "$pid" = "$(show MainPID)" ] && sh_in 'nct ping -k 1 >/dev/null'
    local code=$?
    has StatusText ''
    return $code
}
reload_storm() {
    local pid; pid=$(show MainPID)
    write_conf $'[batch]\nmax_frames = 4'
    for _ in $(seq 100); do kill_main HUP; done
    within 20 sh_in 'nct ping -k 1 >/dev/null' && [ "$pid" = "$(show MainPID)" ] && [ "$(show NRestarts)" = "$restarts" ] && has StatusText ''
}
reload_waits() { # when `systemctl reload` returns, a model of 75 MB that takes its time is in force, each time of six
    local n=0 i
    sh_in 'for i in 0 1; do nct model new /var/lib/nctd/$i.safetensors --in-channels 1024 --out-channels 2048 --kernel-size 9 --num-groups 32 --seed $i; done >/dev/null
        chmod 644 /var/lib/nctd/*'
    for i in 0 1 0 1 0 1; do
        write_conf $'[model big]\nfile = /var/lib/nctd/'"$i.safetensors"
        in_machine systemctl reload nctd
        sh_in 'journalctl -u nctd -n 1 -o cat --no-pager _COMM=nctd' | grep -q 'reload applied' && n=$((n + 1))
    done
    sh_in 'rm /var/lib/nctd/*; journalctl -u nctd -o cat --no-pager | grep "reload applied" | tail -1 | grep -o "seconds=.*"'
    echo "$n of 6; one took $(sh_in 'journalctl -u nctd -o cat --no-pager | grep "reload applied" | tail -1 | grep -o "[0-9.]*$"') s"
    [ $n = 6 ]
}
broken_start() {
    write_conf $'[batch]\nmax_frames = none'
    in_machine systemctl restart nctd && return 1
    sleep 2.5
    is ActiveState failed && is NRestarts 0 && is ExecMainStatus 78 && sh_in 'journalctl -u nctd -n 20 -o cat --no-pager | grep "test.conf:2"'
}
mended_start() { write_conf '' && in_machine systemctl reset-failed nctd && in_machine systemctl start nctd && has StatusText serving; }
watchdog() { # the whole process stands still: the manager ends it, and a new one serves
    local before
    sh_in 'mkdir -p /etc/systemd/system/nctd.service.d && printf "[Service]\nWatchdogSec=2s\n" >/etc/systemd/system/nctd.service.d/w.conf && systemctl daemon-reload && systemctl restart nctd'
    sleep 5
    before=$(show MainPID)
    is NRestarts 0 || { echo "the watchdog ended an idle daemon"; return 1; }
    kill_main STOP
    within 30 is_new "$before" && sh_in 'journalctl -u nctd -o cat --no-pager | grep -i "watchdog timeout" | tail -1'
}
stuck_engine() { # a batch of many seconds on any machine, while the loop turns: killed, replaced, and a client that waits behind it gets its result
    local before run='nct run --connect ipc:///run/nctd/ingest.sock --raw i16 --rate 1000 --timeout 60'
    write_conf $'[engine]\nthreads = 1\ncpu_variant = portable\n[model small]\nin_channels = 2\nout_channels = 4\nkernel_size = 3\nnum_groups = 2
[model slow]\nin_channels = 512\nout_channels = 512\nkernel_size = 95\nnum_groups = 32'
    in_machine systemctl restart nctd && before=$(show MainPID)
    sh_in "head -c 800000 /usr/sbin/nctd >/tmp/s.raw; head -c 16000000 /dev/zero >/tmp/z.raw
        $run --channels 2 --name small /tmp/s.raw -o /tmp/quiet.npy && test -s /tmp/quiet.npy" || return 1
    sh_in "timeout -s KILL 1.5 $run --channels 512 --name slow /tmp/z.raw -o /dev/null; nct ping -k 1" || { echo "the loop does not turn"; return 1; }
    sh_in "$run --channels 2 --name small /tmp/s.raw -o /tmp/troubled.npy && cmp /tmp/quiet.npy /tmp/troubled.npy" || return 1
    is_new "$before" && is NRestarts 1 && sh_in 'journalctl -u nctd -o cat --no-pager | tail -40 | grep -A1 -i "watchdog timeout" | grep -o ".*ABRT.*"'
}
without_drop_in() { sh_in 'rm -rf /etc/systemd/system/nctd.service.d && systemctl daemon-reload && systemctl restart nctd'; }
drop_in() { # NAME EXPOSURE: with an example drop-in the daemon starts, verify is silent, exposure is bounded
    sh_in "mkdir -p /etc/systemd/system/nctd.service.d && cp /usr/share/doc/nctd/examples/$1 /etc/systemd/system/nctd.service.d/ && systemctl daemon-reload && systemctl restart nctd" &&
        verify && sh_in 'nct ping -k 1 >/dev/null' && exposure "$2"
    local code=$?
    without_drop_in
    return $code
}
instance() {
    sh_in 'mkdir -p /etc/nctd/second && printf "[ingest]\nendpoint = ipc:///run/nctd-second/ingest.sock\n[publish]\nendpoint = ipc:///run/nctd-second/publish.sock\n[http]\nendpoint = 127.0.0.1:7782\n" >/etc/nctd/second/nctd.conf &&
        systemctl start nctd@second && nct ping -k 1 --connect ipc:///run/nctd-second/ingest.sock >/dev/null && nct ping -k 1 >/dev/null && systemctl stop nctd@second &&
        test ! -e /run/nctd-second && test -S /run/nctd/ingest.sock && rm -r /etc/nctd/second' && is Result success nctd@second
}
log_lines() { # one event a line, each with its priority
    sh_in 'journalctl -u nctd -p warning -o cat --no-pager _COMM=nctd | grep -c . ; journalctl -u nctd _COMM=nctd -p 6 -o cat --no-pager | grep -E "^<[0-7]>" && exit 1; journalctl -u nctd _COMM=nctd -o json --no-pager | grep -c "\"PRIORITY\":\"6\""'
}
stop_clean() {
    local begin; begin=$(date +%s%N)
    in_machine systemctl stop nctd && is Result success && sh_in '! test -e /run/nctd' && echo "$((($(date +%s%N) - begin) / 1000000)) ms, /run/nctd is gone" &&
        sh_in 'journalctl -u nctd -n 20 -o cat --no-pager | grep "ledger"'
}
conffile_kept() { sh_in 'echo "# mine" >>/etc/nctd/nctd.conf && apt-get install -qq -y --reinstall /debs/nctd_*.deb >/tmp/apt.log 2>&1 && tail -1 /etc/nctd/nctd.conf && systemctl is-active nctd'; }
purge() { sh_in 'rm -f /etc/nctd/conf.d/test.conf; apt-get purge -qq -y nctd nct libnct0 libnct-dev libnct-layer0 libnct-layer-dev >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
    apt-get autoremove -qq -y --purge >/dev/null 2>&1; ! getent passwd nctd && ! getent group nctd && ! systemctl cat nctd >/dev/null 2>&1'; }
nothing_left() { files >"$work/after"; diff "$work/before" "$work/after" | grep '^[<>]' && return 1; echo "$(wc -l <"$work/before") files before, the same after"; }

[ "$(id -u)" = 0 ] || die "systemd-nspawn needs root"
make_base && make_root && boot
in_machine useradd -m alice && in_machine useradd -m bob
echo "$(in_machine systemctl --version | head -1), $(in_machine cat /etc/debian_version)"
files >"$work/before"
row "apt installs the six packages" install_packages
[ $failed = 0 ] || exit 1
in_machine usermod -aG nctd alice
row "the unit is enabled" sh_in 'systemctl is-enabled nctd'
row "READY: started, with a status line" has StatusText serving
row "user, group and folders are made" user_made
row "systemd-analyze verify says nothing" verify
row "systemd-analyze security: at most 2.0" exposure 20
row "root gets an answer" sh_in 'nct ping -k 1'
row "a member of the group nctd gets an answer" as alice nct ping -k 1
row "somebody else does not, with exit code 69" stranger_refused
row "and is told that it is a matter of permission" stranger_told
row "frames: 8 streams, 200 a second" load
row "nct run, with a private daemon" sound_file
row "bash completes nct" sh_in 'test -s /usr/share/bash-completion/completions/nct && bash -n /usr/share/bash-completion/completions/nct && echo there'
row "kill -9: another one serves" killed_and_back
row "a client goes on over kill -9" client_survives kill_main 9
row "a client goes on over a restart, the folder made anew" client_survives in_machine systemctl restart nctd
restarts=$(show NRestarts)
row "reload: a good conf is applied" reload_good
row "reload: a bad one is refused, the old one serves" reload_bad
row "reload: 100 in a row, the same process serves" reload_storm
row "reload: systemctl waits for its end" reload_waits
row "a broken conf: start fails once, with file:line" broken_start
row "mended: it starts" mended_start
row "watchdog: a process that stands still is replaced" watchdog
row "watchdog: a stuck engine too; who waited gets its result" stuck_engine
write_conf ''
without_drop_in
row "nctd-gpu.conf: starts, at most 2.0" drop_in nctd-gpu.conf 20
row "nctd-network.conf: starts, at most 2.0" drop_in nctd-network.conf 20
row "nctd@second beside it" instance
row "the journal has priorities, and no prefix in its lines" log_lines
row "stop: in time, success, the ledger in the log" stop_clean
row "an upgrade keeps a changed conf and starts again" conffile_kept
row "purge" purge
row "purge leaves no file" nothing_left
echo "$((shown - failed)) passed, $failed failed"
[ $failed = 0 ]
