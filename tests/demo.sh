#!/usr/bin/env bash
# The demo: two recordings (speech, and the same voice as a 64-microphone array hears it) through a running daemon.
# Leaves results and pictures in build/demo and says where. Needs what `make demo` installs.
set -euo pipefail
build=${BUILD:-build}
here=$build/demo
nct=$build/nct
rm -rf "$here" && mkdir -p "$here"
run=$(mktemp -d "${TMPDIR:-/tmp}/nctd-demo.XXXXXX") # ipc paths are at most 107 octets long
trap '[ -z "${daemon:-}" ] || { kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; }; rm -rf "$run"' EXIT

echo "== recordings"
espeak-ng -v en -s 150 -w "$here/speech.wav" "This is a recording of a voice. A daemon listens to it, a thousand steps at a
  time, and one layer of a neural network answers. Every frame gets exactly one answer. Sphinx of black quartz, judge my vow."
python3 - "$here/speech.wav" "$here/array64.wav" <<'PY'
import array, math, sys, wave
w = wave.open(sys.argv[1]); rate = w.getframerate(); x = array.array("h", w.readframes(w.getnframes()))
# A straight row of 64 microphones, 2 cm apart, a speaker at 40 degrees: each hears the voice a little later and softer.
delays = [int(round(i * 0.02 * math.sin(math.radians(40)) / 343 * rate)) for i in range(64)]
out = array.array("h", bytes(2 * 64 * len(x)))
for i, d in enumerate(delays):
    gain = 1 / (1 + 0.01 * i)
    out[i::64] = array.array("h", [0] * d + [int(gain * v) for v in x[:len(x) - d]])
a = wave.open(sys.argv[2], "wb"); a.setnchannels(64); a.setsampwidth(2); a.setframerate(rate); a.writeframes(out.tobytes())
print(f"   speech.wav: {len(x) / rate:.1f} s, 1 channel; array64.wav: 64 channels, {rate} Hz")
PY

echo "== models (PyTorch's own initialisation)"
"$nct" model new "$here/speech.safetensors" --in-channels 1 --out-channels 32 --kernel-size 10 --stride 5 --num-groups 8 --activation gelu --seed 1
"$nct" model new "$here/array.safetensors" --in-channels 64 --out-channels 64 --kernel-size 3 --padding 1 --num-groups 16 --activation silu --seed 2

echo "== daemon"
cat > "$run/nctd.conf" <<CONF
[ingest]
endpoint = ipc://$run/ingest.sock
[publish]
endpoint = ipc://$run/publish.sock
[http]
enabled = no
[model speech]
file = $here/speech.safetensors
[model array]
file = $here/array.safetensors
CONF
"$build/nctd" -c "$run/nctd.conf" 2> "$here/nctd.log" &
daemon=$!
for _ in $(seq 300); do [ -S "$run/ingest.sock" ] || ! kill -0 "$daemon" && break; sleep 0.1; done
"$nct" ping --connect "ipc://$run/ingest.sock" --count 1 --timeout 30 || { cat "$here/nctd.log"; exit 1; }

echo "== recordings through the daemon"
"$nct" run --connect "ipc://$run/ingest.sock" --name speech "$here/speech.wav" -o "$here/speech.npy" --plot "$here/speech.png"
"$nct" run --connect "ipc://$run/ingest.sock" --name array "$here/array64.wav" -o "$here/array64.out.wav" --plot "$here/array64.png"

echo "== load: 16 streams of (64, 480) frames, 800 a second: what 8 such arrays at 48 kHz send in real time"
"$nct" bench --connect "ipc://$run/ingest.sock" --name array --streams 16 --rate 800 --steps 480 --seconds 4 ||
  [ $? = 75 ] # it was late itself, and says so: this machine is busy, nothing is wrong

echo "== the daemon's books"
"$nct" info --connect "ipc://$run/ingest.sock" | tail -25
echo "== left in $here:"
ls -l "$here" | awk 'NR > 1 {print "   " $9 "  " $5 " bytes"}'
