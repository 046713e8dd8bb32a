#!/bin/sh
# deb.sh OUT: Debian packages of the committed tree (or of an unpacked tarball), into OUT. Exports it, puts conf/debian at
# its top, writes debian/changelog from CHANGELOG.md, builds, and asks lintian. Environment: VERSION, CUDA (auto),
# JOBS. Called by `make deb`.
set -eu
out=$1 version=${VERSION:?} cuda=${CUDA:-auto}
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$out/nctd-$version
rm -rf "$out" && mkdir -p "$tree"
out=$(cd "$out" && pwd) tree=$out/nctd-$version
if git -C "$root" rev-parse HEAD >/dev/null 2>&1; then
    git -C "$root" archive HEAD | tar -x -C "$tree"
    date=$(git -C "$root" log -1 --format=%cD)
else
    tar -C "$root" --exclude=./build --exclude=./.git -c . | tar -x -C "$tree"
    date=$(date -R -r "$root/CHANGELOG.md")
fi
cp -r "$tree/conf/debian" "$tree/debian"
cp "$tree/conf/nctd.sysusers" "$tree/debian/nctd.sysusers"
cp "$tree/conf/nctd.tmpfiles" "$tree/debian/nctd.tmpfiles"
{
    printf 'nctd (%s) unstable; urgency=medium\n\n' "$version"
    awk -v v="## $version" '
        function put() { if (line != "") print line; line = "" }
        index($0, "## ") == 1 { on = index($0, v) == 1; next }
        !on || !/^(- |  )/ { next }
        /^- / { put(); line = "  *" }
        { for (i = /^- / ? 2 : 1; i <= NF; i++) {
              if (length(line) + length($i) > 77) { put(); line = "   " }
              line = line " " $i
          } }
        END { put() }' "$tree/CHANGELOG.md"
    printf '\n -- nctd authors <nctd@example.org>  %s\n' "$date"
} >"$tree/debian/changelog"
cd "$tree"
CUDA=$cuda dpkg-buildpackage -b -us -uc "-j${JOBS:-$(nproc)}" >"$out/build.log" 2>&1 ||
    { tail -40 "$out/build.log"; echo "deb: the build failed; all of it: $out/build.log" >&2; exit 1; }
# Every finding counts. An override without a reason beside it is not accepted (debian/*.lintian-overrides).
lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$out"/*.changes || { echo "deb: lintian complains" >&2; exit 1; }
ls "$out"/*.deb
