#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who leads the store's masters: one at a time, with tokens that grow, by a real etcd."""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from mcshm import *  # noqa: E402,F403
from etcd import *  # noqa: E402,F403


def asked(m):
    return m.ask("leader")


def leads(m):
    a = asked(m)
    return a if a.sure else None


def one_of(metas):
    return next(((m, a) for m in metas for a in [leads(m)] if a), None)


class Trio:
    def __init__(self, etcd, ttl=2):
        self.etcd, self.ttl, self.lives = etcd, ttl, 0
        self.all = [self.start(i) for i in range(3)]

    def start(self, i):
        self.lives += 1
        m = Meta("etcd", self.etcd.url, address=f"127.0.0.1:{7101 + i}", incarnation=100 + self.lives, ttl=self.ttl,
                 timeout=1000)
        equal(m.ask("lead", "candidate").res, 0)
        return m


def never_two(metas, seconds):
    """Looks again and again: at no time are two sure of it. Returns the tokens that were seen."""
    end, tokens = time.monotonic() + seconds, {}
    while time.monotonic() < end:
        sure = [(m, a) for m in metas for a in [leads(m)] if a]
        for m, a in sure:
            check(tokens.setdefault(a.token, m) is m, "two have led with token", a.token)
        # the answers are a moment apart: who was sure first may not be it any more
        if len(sure) > 1:
            check(len([m for m in metas if leads(m)]) <= 1, "two lead")
        time.sleep(0.02)
    return tokens


def one_leads_and_the_others_know():
    etcd = Etcd()
    t = Trio(etcd)
    first, a = await_(lambda: one_of(t.all), "a leader")
    await_(lambda: all(asked(m).token == a.token for m in t.all), "all know it")
    for m in t.all:
        equal(asked(m).address, a.address)
        equal(asked(m).mine, m is first)
    tokens = [a.token]
    for _ in range(2):  # leaders die, others take over
        first.process.kill()
        first.process.wait()
        t.all.remove(first)
        first, a = await_(lambda: one_of(t.all), "the next leader")
        check(a.token > tokens[-1], "tokens grow", tokens, a.token)
        tokens.append(a.token)
    follower = Meta("etcd", etcd.url, address="127.0.0.1:7200", timeout=1000)
    equal(follower.ask("lead", "follow").res, 0)
    await_(lambda: asked(follower).token == a.token, "a follower knows it")
    # who stops gives it back at once; a follower does not take it
    since = time.monotonic()
    first.process.stdin.close()
    equal(first.process.wait(), 0, "a clean stop")
    await_(lambda: asked(follower).address == "", "nobody leads")
    time.sleep(1.5)
    check(not asked(follower).mine, "a follower leads")
    etcd.stop()


def a_stalled_leader_knows_at_once():
    etcd = Etcd()
    t = Trio(etcd)
    first, a = await_(lambda: one_of(t.all), "a leader")
    others = [m for m in t.all if m is not first]
    os.kill(first.process.pid, signal.SIGSTOP)
    second, b = await_(lambda: one_of(others), "another leader")
    check(b.token > a.token, a.token, b.token)
    question = first.post("leader")  # it reads this first thing
    os.kill(first.process.pid, signal.SIGCONT)
    check(not first.answer(question).sure, "it still thinks that it leads")
    check(len(never_two(t.all, 3)) == 1, "the second leads on")
    await_(lambda: asked(first).token == b.token, "the first follows")
    etcd.stop()


def without_etcd_nobody_leads_for_long():
    etcd = Etcd()
    t = Trio(etcd)
    first, a = await_(lambda: one_of(t.all), "a leader")
    etcd.freeze()
    await_(lambda: not one_of(t.all), "nobody leads")
    etcd.thaw()
    second, b = await_(lambda: one_of(t.all), "a leader again")
    check(b.token >= a.token, a.token, b.token)
    never_two(t.all, 2)
    etcd.stop()


def an_earlier_life_is_followed_at_once():
    etcd = Etcd()
    t = Trio(etcd, ttl=5)
    first, a = await_(lambda: one_of(t.all), "a leader")
    i = t.all.index(first)
    first.process.kill()
    first.process.wait()
    others = [m for m in t.all if m is not first]
    for m in others:
        m.process.kill()
    t.all = [t.start(i)]
    m, b = await_(lambda: one_of(t.all), "its next life leads")
    check(b.token > a.token, a.token, b.token)
    etcd.stop()


def an_emptied_etcd_starts_above():
    etcd = Etcd()
    t = Trio(etcd)
    first, a = await_(lambda: one_of(t.all), "a leader")
    members = "mcshm/store/members"
    etcd.ctl("put", members, "127.0.0.1:7300")
    for token, how, left in (3000, "doubt", members), (5000, "emptied", ""):
        first.post("raise", token, how)
        await_(lambda: asked(first).token > token and leads(first), "a greater token")
        await_(lambda: all(asked(m).token == asked(first).token for m in t.all), "all know it")
        equal(etcd.ctl("get", members, "--keys-only").strip(), left, "what was noted after it was raised in " + how)
    etcd.stop()


def whom_to_wait_for():
    etcd = Etcd()
    holder = Meta("etcd", etcd.url, address="127.0.0.1:7300", timeout=1000)
    equal(holder.put("mcshm/store/holders/127.0.0.1:7300", "x").res, 0)
    t = Trio(etcd)
    first, _ = await_(lambda: one_of(t.all), "a leader")
    equal(first.ask("holders").holders, ["127.0.0.1:7300"])
    m = Meta("p2p", "", address="127.0.0.1:7301")
    equal(m.ask("lead", "candidate").res, ENOTSUP)
    etcd.stop()


if __name__ == "__main__":
    one_leads_and_the_others_know()
    a_stalled_leader_knows_at_once()
    without_etcd_nobody_leads_for_long()
    an_earlier_life_is_followed_at_once()
    an_emptied_etcd_starts_above()
    whom_to_wait_for()
