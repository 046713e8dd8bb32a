#!/bin/sh
# bundle.sh BUILD OUT: nctd, nct, the libraries they need (but glibc's and the driver's), the Python client and the GPU
# tests in one relocatable folder, and its tarball. Runs on a GPU host with a driver and no packages: bin/nctd. The stories
# there: NCT_ENGINE=cuda NCT_BUILD=lib NCTD=bin/nctd NCT=bin/nct LD_LIBRARY_PATH=lib pytest tests/e2e (absolute paths).
set -eu
build=$1 out=$2
rm -rf "$out" && mkdir -p "$out/bin" "$out/lib" "$out/libexec"
for path in nctd nct bench/echo_server; do
    name=$(basename "$path")
    [ -x "$build/$path" ] || { echo "bundle: $build/$path is not built" >&2; exit 1; }
    cp "$build/$path" "$out/libexec/$name"
    ldd "$build/$path" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda)\.so' |
        xargs -r -I{} cp -Ln {} "$out/lib/"
    printf '%s\n' '#!/bin/sh' 'here=$(cd "$(dirname "$0")/.." && pwd)' \
        'LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/libexec/'"$name"'" "$@"' >"$out/bin/$name"
    chmod +x "$out/bin/$name"
done
cp -L "$build/libnct_layer.so.0" "$build/libnct.so.0" "$out/lib/"
mkdir -p "$out/client" && cp -r client/nct.h client/python "$out/client/" && ln -s client/python "$out/python"
ln -s libnct.so.0 "$out/lib/libnct.so" # the stories' own programs link here
[ ! -e "$build/libnct_gpu_oracle.so" ] || cp "$build/libnct_gpu_oracle.so" "$out/lib/"
mkdir -p "$out/tests" && cp -r tests/gpu tests/bench tests/e2e tests/data "$out/tests/"
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
du -sh "$out" "$out.tar.gz"
