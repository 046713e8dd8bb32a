"""`make install` into a folder, and a stranger's program built against what is there."""
import os
import re
import subprocess

import numpy as np
import pytest

import stfile
from conftest import BUILD, ROOT

CLIENT = r"""
#include <nct.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    float x[20], y[40];
    nct *c;
    char why[256];
    if (argc != 2 || nct_open_why(&c, argv[1], NULL, why) < 0) return fprintf(stderr, "%s\n", why), 1;
    for (int i = 0; i < 20; i++) x[i] = (float)(i * i % 7);
    nct_request q = {.model = "m", .stream = "s", .dtype = NCT_DTYPE_F32, .channels = 2, .steps = 10};
    nct_answer a;
    if (nct_call(c, &q, x, 20000, &a) < 0) return fprintf(stderr, "%s\n", nct_reason(c)), 1;
    if (a.status || a.payload_bytes != sizeof y) return fprintf(stderr, "%d %zu %s\n", a.status, a.payload_bytes, a.text), 1;
    memcpy(y, a.payload, sizeof y);
    for (int i = 0; i < 40; i++) printf("%.9g\n", (double)y[i]);
    nct_release(&a);
    nct_close(c);
    return 0;
}
"""
LAYER = r"""
#include <nct_layer.h>
#include <stdio.h>
int main(void) {
    nct_params p = {.in_channels = 2, .out_channels = 4, .kernel_size = 3, .stride = 2, .dilation = 1, .groups = 1,
        .num_groups = 2, .pad_left = 1, .pad_right = 1, .eps = 1e-5};
    nct_why why = {""};
    int64_t t_out;
    if (nct_layer_abi() != NCT_LAYER_ABI || nct_out_steps(&p, 10, 1, 1, &t_out, &why)) return 1;
    printf("%lld\n", (long long)t_out);
    return 0;
}
"""
MAKE = os.environ.get("MAKE", "make")
pytestmark = pytest.mark.xdist_group("install")  # one make at a time


def install(folder, *args):
    subprocess.run([MAKE, "-s", f"BUILD={BUILD}", f"DESTDIR={folder}", *args, "install"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("install"))
    install(folder, "PREFIX=/usr", "libdir=/usr/lib/here")
    return folder


def compiled(root, package, text, folder):
    """A program made with nothing but pkg-config's words, as somebody else would; -> its path."""
    env = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": root, "PKG_CONFIG_PATH": f"{root}/usr/lib/here/pkgconfig"}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", package], env=env, check=True, capture_output=True, text=True)
    source, program = folder / "p.c", folder / "p"
    source.write_text(text)
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", program, source, *flags.stdout.split()],
                   check=True)
    return program


def output(root, program, *args):
    env = {**os.environ, "LD_LIBRARY_PATH": f"{root}/usr/lib/here"}
    return subprocess.run([program, *args], env=env, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_program_against_libnct_gets_the_layers_result(root, start, tmp_path):
    w = np.arange(24, dtype=np.float32).reshape(4, 2, 3) / 10
    stfile.write(tmp_path / "m.safetensors", {"conv.weight": w}, {"num_groups": 2, "affine": "False", "padding": 1})
    d = start({"model m": {"file": str(tmp_path / "m.safetensors")}})
    program = compiled(root, "nct", CLIENT, tmp_path)
    y = np.array(output(root, program, d.ingest).split(), np.float64).reshape(4, 10)
    x = np.array([i * i % 7 for i in range(20)], np.float64).reshape(2, 10)
    conv = np.stack([sum(np.convolve(np.pad(x[c], 1), w[o, c, ::-1], "valid") for c in range(2)) for o in range(4)])
    groups = conv.reshape(2, -1)
    want = ((groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-5)).reshape(4, 10)
    assert not (y.shape != want.shape) and np.all(np.abs(y - want) <= 1e-5)
    assert d.stop() == 0


def test_a_program_against_libnct_layer(root, tmp_path):
    assert output(root, compiled(root, "nct_layer", LAYER, tmp_path)) == "5\n"


def test_libraries_are_named_by_their_version(root):
    for name in ("libnct", "libnct_layer"):
        at = f"{root}/usr/lib/here/{name}.so"
        assert os.readlink(at) == f"{name}.so.0" and re.fullmatch(rf"{name}\.so\.\d+\.\d+\.\d+", os.readlink(at + ".0"))
        dynamic = subprocess.run(["readelf", "-d", at], check=True, capture_output=True, text=True).stdout
        assert f"soname: [{name}.so.0]" in dynamic and "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_units_name_the_programs_where_they_are_put(root, tmp_path):
    install(tmp_path, "PREFIX=/opt/nct")
    for name, conf in (("nctd", "/etc/nctd/nctd.conf"), ("nctd@", "/etc/nctd/%i/nctd.conf")):
        with open(f"{tmp_path}/opt/nct/lib/systemd/system/{name}.service") as f:
            assert f"\nExecStart=/opt/nct/sbin/nctd -c {conf}\n" in f.read()
    assert os.access(f"{tmp_path}/opt/nct/sbin/nctd", os.X_OK)
    assert not os.path.exists(f"{tmp_path}/usr")
    with open(f"{tmp_path}/opt/nct/lib/pkgconfig/nct.pc") as f:
        assert "prefix=/opt/nct\nlibdir=/opt/nct/lib\n" in f.read()


def test_what_else_is_put(root):
    for path in ("bin/nct", "sbin/nctd", "include/nct.h", "include/nct_layer.h", "lib/sysusers.d/nctd.conf",
                 "lib/tmpfiles.d/nctd.conf", "share/man/man1/nct.1", "share/man/man3/libnct.3", "share/man/man5/nctd.conf.5",
                 "share/man/man8/nctd.8", "share/bash-completion/completions/nct", "share/doc/nctd/examples/nctd-gpu.conf",
                 "share/doc/nctd/examples/nctd-network.conf"):
        assert os.path.getsize(f"{root}/usr/{path}") > 0, path


def test_a_configuration_that_is_there_is_kept(tmp_path):
    install(tmp_path)
    conf = tmp_path / "etc/nctd/nctd.conf"
    with open(f"{ROOT}/conf/nctd.conf") as f:
        assert conf.read_text() == f.read()
    conf.write_text("[batch]\nmax_frames = 3\n")
    install(tmp_path)
    assert conf.read_text() == "[batch]\nmax_frames = 3\n"
