"""CURVE keys: from texts, or from files as `nct keygen`, czmq and pyzmq write them."""

import os
import re
import stat

Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


def _text(key):
    return key.decode("ascii", "replace") if isinstance(key, bytes) else key


def is_key(text):
    return isinstance(text, str) and Z85.fullmatch(text) is not None


def read(path, secret=False):
    """-> (public key, secret key or None). ValueError: what is wrong with the file, and what to do."""
    path = os.fspath(path)
    with open(path, encoding="utf-8", errors="replace") as f:
        mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
        text = f.read(16385)
    found = dict(re.findall(r"""^\s+(public-key|secret-key)\s*=\s*["']?([^"'\s]{40})["']?\s*$""", text, re.M))
    if not is_key(found.get("public-key")):
        raise ValueError(f'{path}: there is no public-key in a section "curve": not a key file')
    if secret and not is_key(found.get("secret-key")):
        raise ValueError(f"{path}: there is no secret-key in it; this is the public half: name the .key_secret file")
    if secret and mode & 0o077:
        raise ValueError(f"{path}: mode {mode:04o} lets others read a secret key: chmod 600 {path}")
    return found["public-key"], found.get("secret-key")


def curve_of(curve):
    """(server key or its file, own .key_secret file) or (server key, public key, secret key) -> three texts; None: None."""
    if not curve:
        return None
    if isinstance(curve, (str, bytes)) or len(curve) not in (2, 3):
        raise ValueError("curve is (server key, public key, secret key), or (server key or its .key file, own .key_secret file)")
    server = _text(curve[0])
    if not is_key(server):
        server = read(server)[0]
    own = read(curve[1], secret=True) if len(curve) == 2 else tuple(map(_text, curve[1:]))
    if not all(map(is_key, own)):
        raise ValueError("curve: a key is 40 characters of Z85")
    return (server, *own)
