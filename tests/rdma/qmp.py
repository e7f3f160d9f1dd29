#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One QMP command to a VM that was started with `vm.sh -q SOCKET`; prints the answer, status 1 if that is an error.

    qmp.py SOCKET COMMAND [KEY=JSON]...
    qmp.py SOCKET set_link name='"nic0"' up=false     cuts the wire of its first NIC; up=true mends it
"""
import json
import socket
import sys


def main(path, command, *arguments):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect(path)
    f = s.makefile("rw")

    def execute(name, values):
        f.write(json.dumps({"execute": name, "arguments": values}) + "\n")
        f.flush()
        while True:  # events come in between
            answer = json.loads(f.readline())
            if "return" in answer or "error" in answer:
                return answer

    f.readline()  # the greeting
    execute("qmp_capabilities", {})
    answer = execute(command, {k: json.loads(v) for k, v in (a.split("=", 1) for a in arguments)})
    print(json.dumps(answer))
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
