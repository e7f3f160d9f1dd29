#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may connect: keys and certificates, good and bad; what is refused at the start; encryption."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hosts import *  # noqa: E402,F403

if shutil.which("openssl") is None:
    skip("needs openssl, for certificates")
dir_ = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="k")
atexit.register(shutil.rmtree, dir_, ignore_errors=True)
net = Net("a", "b", "c")
ha, hb, hc = net
STRICT = "peer.allow_insecure=no"


def psk(text="the secret of these hosts", name="psk"):
    return [STRICT, "peer.auth=psk", "peer.psk_file=" + psk_file(dir_, name, text)]


# ---- what does not start, and says how it would

for settings, words in (
        ([STRICT], ("allow_insecure", "psk", "tls")),
        ([STRICT, "peer.listen=" + ha.at()], ("allow_insecure",)),
        ([STRICT, "peer.auth=psk"], ("psk_file",)),
        ([STRICT, "peer.auth=psk", "peer.psk_file=" + dir_ + "/none"], ("/none",)),
        (psk("short", "short"), ("16",)),
        ([STRICT, "peer.auth=tls"], ("tls_",)),
        ([STRICT, "peer.auth=tls", f"peer.tls_cert={dir_}/none", f"peer.tls_key={dir_}/none",
          f"peer.tls_ca={dir_}/none"], ("/none",)),
        (["peer.listen=nonsense"], ("listen", "nonsense"))):
    said = start_fails(ha, *settings)
    for word in words:
        check(word in said, settings, "is refused without a word of", word, "in:", said)
open_ = psk(name="open")
os.chmod(dir_ + "/open", 0o644)
said = start_fails(ha, *open_)
check("/open" in said, "a key that others can read:", said)

# ---- psk


def works(frm, to, name="works"):
    owner = Owner(to, name, MiB)
    c = Client(frm.socket, "client")
    p = c.alloc(MiB)
    fill(p, MiB, 0x42)
    equal(c.write(p, c.open(owner.names), owner.at, MiB).state, COMPLETED, "a write")
    equal(owner.peek(), b"\x42" * MiB, "its bytes")
    c.close()
    owner.close()


def turned_away(frm, to, status=AUTH, word=None):
    """frm cannot open what is at to; returns the sentence."""
    owner = Owner(to, "closed", 4096)
    c = Client(frm.socket, "stranger")
    said = refused(status, c.open, owner.names)
    check(word is None or word in said, "a sentence with", word, "in:", said)
    equal(owner.peek(), b"\0" * 4096, "its bytes")
    c.close()
    owner.close()
    return said


a, b, c = ha.agent(*psk()), hb.agent(*psk()), hc.agent(*psk("another secret than theirs", "other"))
good = Owner(b, "good", 4 * MiB)
beside = Traffic(a, good, size=256 * KiB)
beside.progress()
works(a, b)
works(b, a)
turned_away(c, b)
turned_away(a, c)
check(b.counted("peer_auth_failures") > 0, "failures are counted where one comes in")
equal(c.stop(), 0, "exit status: " + c.text())
c = hc.agent()  # none
turned_away(c, b)
turned_away(a, c)
equal(c.stop(), 0, "exit status: " + c.text())
beside.progress()
beside.finish()
good.close()
finish(a, b)

# ---- tls


def openssl(*words):
    run(["openssl", *words], cwd=dir_)


def authority(name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
            f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")


def certificate(name, ca, days="2"):
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
            "-days", days, "-out", f"{name}.pem")


def tls(name, ca="ours"):
    return [STRICT, "peer.auth=tls", f"peer.tls_cert={dir_}/{name}.pem", f"peer.tls_key={dir_}/{name}.key",
            f"peer.tls_ca={dir_}/{ca}.pem"]


authority("ours")
authority("theirs")
for name in ("host-a", "host-b", "host-c"):
    certificate(name, "ours")
certificate("expired", "ours", "-1")
certificate("foreign", "theirs")
a, b = ha.agent(*tls("host-a")), hb.agent(*tls("host-b"))
works(a, b)
works(b, a)
good = Owner(b, "good", 4 * MiB)
beside = Traffic(a, good, size=256 * KiB)
beside.progress()
for name, ca, word in (("expired", "ours", "expired"), ("foreign", "ours", None), ("foreign", "theirs", None),
                       ("host-c", "theirs", None)):
    failures = b.counted("peer_auth_failures")
    c = hc.agent(*tls(name, ca))
    turned_away(c, b)
    turned_away(a, c, word=word)
    await_(lambda: b.counted("peer_auth_failures") > failures, f"failures with {name} to be counted")
    equal(c.stop(), 0, "exit status: " + c.text())
said = start_fails(hc, STRICT, "peer.auth=tls", f"peer.tls_cert={dir_}/host-a.pem",
                   f"peer.tls_key={dir_}/host-b.key", f"peer.tls_ca={dir_}/ours.pem")
check("key" in said, "a key of another certificate:", said)

# ---- encryption: rails are plain text, and who requires more is told that there is none
c = hc.agent(*tls("host-c"), "peer.require_encryption=yes")
turned_away(c, b, ENCRYPTION, "require_encryption")
owner = Owner(c, "secret", 4096)
d = Client(a.socket, "client")
try:
    t = d.write(d.alloc(4096), d.open(owner.names), owner.at, 4096)
    equal((t.error, t.bytes), (ENCRYPTION, 0), "a write to one that requires encryption")
except McshmError as e:
    equal(e.status, ENCRYPTION, e)
equal(owner.peek(), b"\0" * 4096, "its bytes")
d.close()
owner.close()
beside.progress()
beside.finish()
good.close()
finish(a, b, c)
