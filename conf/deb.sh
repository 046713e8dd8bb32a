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
    awk -v v="## $version" 'index($0, "## ") == 1 { on = index($0, v) == 1; next }
        on && /^- /  { sub(/^- /, "  * "); print; next }
        on && /^  [^ ]/ { print "  " $0 }' "$tree/CHANGELOG.md"
    printf '\n -- nctd developers <nctd@localhost.localdomain>  %s\n' "$date"
} >"$tree/debian/changelog"
cd "$tree"
CUDA=$cuda dpkg-buildpackage -b -us -uc "-j${JOBS:-$(nproc)}" >"$out/build.log" 2>&1 ||
    { tail -40 "$out/build.log"; echo "deb: the build failed; all of it: $out/build.log" >&2; exit 1; }
# --no-tag-display-limit: every finding. An override without a reason beside it is not accepted (debian/*.lintian-overrides).
lintian --allow-root --no-tag-display-limit --fail-on error,warning "$out"/*.changes || { echo "deb: lintian complains" >&2; exit 1; }
ls "$out"/*.deb
