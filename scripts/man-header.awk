# SPDX-License-Identifier: Apache-2.0
#
# The body of mcshm(3) out of lib/mcshm.h: each declaration as it stands, its comment below it as text.
function escape(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    return s ~ /^[.']/ ? "\\&" s : s
}
# A comment's lines: an indented one is a table's and stays as it is, an empty one parts paragraphs.
function text(    i, line, table) {
    for (i = 1; i <= comments; i++) {
        line = comment[i]
        if (line ~ /^  +[^ ]/ && !table) {
            print ".PP\n.nf"
            table = 1
        } else if (line !~ /^  / && table) {
            print ".fi"
            if (line != "")
                print ".PP"
            table = 0
        }
        if (table)
            print escape(line)
        else if (line == "")
            print ".PP"
        else {
            sub(/^ /, "", line)
            print escape(line)
        }
    }
    if (table)
        print ".fi"
}
function flush_declaration(    i) {
    if (declarations > 0) {
        print ".PP\n.nf"
        for (i = 1; i <= declarations; i++)
            print escape(declaration[i])
        print ".fi"
        if (comments > 0) {
            print ".RS 4"
            text()
            print ".RE"
        }
        comments = 0
    }
    declarations = 0
}
/SPDX-License-Identifier/ || /^#(include|ifndef|ifdef|endif)/ || /^#define MCSHM_H$/ || /^extern "C"/ { next }
in_comment {
    line = $0
    last = line ~ /\*\/$/
    sub(/ *\*\/$/, "", line)
    sub(/^ \*/, "", line)
    if (!last || line !~ /^ *$/)
        comment[++comments] = line
    if (last) {
        in_comment = 0
        if (!described) { # the file's own comment
            text()
            comments = 0
            described = 1
        }
    }
    next
}
depth == 0 && /^\/\* ---- / {
    flush_declaration()
    name = $0
    gsub(/^\/\* -+ | -+ \*\/$/, "", name)
    print ".SH " toupper(name)
    next
}
depth == 0 && /^\/\*/ {
    flush_declaration()
    comments = 0
    line = $0
    if (line ~ /\*\/$/) {
        gsub(/^\/\*| *\*\/$/, "", line)
        comment[++comments] = line
    } else {
        in_comment = 1
        sub(/^\/\*/, "", line)
        if (line != "")
            comment[++comments] = line
    }
    next
}
depth == 0 && /^ *$/ {
    flush_declaration()
    comments = 0
    next
}
depth == 0 && /^}$/ { next } # of extern "C"
{
    # the next function belongs to a comment of its own or to the one above both
    declaration[++declarations] = $0
    code = $0
    sub(/\/\*.*/, "", code)
    depth += gsub(/{/, "", code) - gsub(/}/, "", code)
}
END { flush_declaration() }
