"""A small model of votes and of what is sent ahead of them, tried exhaustively: see docs/round_trips.rst.

In each call a rank makes the planned call, or one that it cannot send ahead, as after a change, or a mistake that the
vote finds, or another call; or it is at its end. Whatever each rank does, no rank waits for ever, no message stays
under way, no rank takes one message for another, and all ranks learn the same. The model follows src/comm/vote.cpp.
"""

import itertools
from collections import defaultdict

import pytest

KINDS = ("planned", "changed", "mistake", "other")
END = "end"


def script(program, me, ranks):
    """The steps of a rank, as a generator: what it sends, and what it waits for. Returns what it learned."""
    others = [rank for rank in range(ranks) if rank != me]
    ahead = {"A": True, "B": True}  # whether all ranks could send ahead of the last such vote
    learned = []
    for number in itertools.count():
        kind = program[number] if number < len(program) else END
        call = {"other": "B", END: END}.get(kind, "A")
        could_send = kind not in ("changed", END)
        vote = call, could_send, could_send and ahead[call], kind == "mistake"
        for other in others * vote[2]:
            yield "send", other, ("data", number), call
        for other in others:
            yield "send", other, "vote", vote
        votes = {me: vote}
        for other in others:
            votes[other] = yield "receive", other, "vote"
        calls, could, sent, mistaken = zip(*votes.values(), strict=True)
        same = len(set(calls)) == 1
        raises, dropped = not same or any(mistaken), any(sent)
        if all(sent) and not raises:
            dropped = False
            for other in others:
                assert (yield "receive", other, ("data", number)) == call
        if dropped:
            for other in others:
                yield "send", other, "count", int(vote[2])
            for other in others:
                for _ in range((yield "receive", other, "count")):
                    yield "receive", other, ("data", number)
        learned.append((same, raises, dropped))
        if same and call == END:
            return learned
        if not any(sent) and not raises:  # the data moves after the vote
            for other in others:
                yield "send", other, "moved", call
            for other in others:
                assert (yield "receive", other, "moved") == call
        if same:
            ahead[call] = all(could) and not dropped


def check_end(programs, waiting, under_way, learned):
    """When no rank can go on."""
    assert not waiting, (programs, waiting)
    assert not any(under_way.values()), (programs, under_way)
    assert all(verdicts == learned[0] for verdicts in learned), (programs, learned)


def in_one_order(programs):
    """Each rank goes on as far as it can, then the next."""
    ranks = range(len(programs))
    scripts = [script(program, rank, len(programs)) for rank, program in enumerate(programs)]
    steps, learned, under_way = [next(generator) for generator in scripts], [None for _ in ranks], defaultdict(list)
    rank, blocked = 0, 0
    while blocked < len(programs):
        step, answer = steps[rank], None
        if step is None or (step[0] == "receive" and not under_way[step[1], rank, step[2]]):
            rank, blocked = (rank + 1) % len(programs), blocked + 1
            continue
        if step[0] == "send":
            under_way[rank, step[1], step[2]].append(step[3])
        else:
            answer = under_way[step[1], rank, step[2]].pop(0)
        blocked = 0
        try:
            steps[rank] = scripts[rank].send(answer)
        except StopIteration as end:
            steps[rank], learned[rank] = None, end.value
    check_end(programs, [step for step in steps if step], under_way, learned)


def resumed(program, me, ranks, answers):
    """The next step of a rank that got these answers, and what it learned if it has none."""
    steps = script(program, me, ranks)
    try:
        step = next(steps)
        for answer in answers:
            step = steps.send(answer)
    except StopIteration as end:
        return None, end.value
    return step, None


def in_all_orders(programs):
    """All orders of all steps: the states are what each rank got so far, and what is under way."""
    count = len(programs)
    first = (((),) * count, frozenset())
    seen, unexplored = {first}, [first]
    while unexplored:
        answers, under_way = unexplored.pop()
        messages, can_go_on = dict(under_way), False
        steps = [resumed(program, rank, count, answers[rank]) for rank, program in enumerate(programs)]
        for rank, (step, _) in enumerate(steps):
            if step is None:
                continue
            channel = (rank, step[1], step[2]) if step[0] == "send" else (step[1], rank, step[2])
            queue, answer = messages.get(channel, ()), None
            if step[0] == "send":
                queue += step[3:]
            elif queue:
                answer, queue = queue[0], queue[1:]
            else:
                continue
            can_go_on = True
            after = tuple((*history, answer) if other == rank else history for other, history in enumerate(answers))
            state = after, frozenset({**messages, channel: queue}.items())
            if state not in seen:
                seen.add(state)
                unexplored.append(state)
        if not can_go_on:
            check_end(programs, [step for step, _ in steps if step], messages, [learned for _, learned in steps])


def programs(ranks, calls):
    """The programs of all ranks in up to so many calls. Ranks may change places."""
    each = [program for n in range(calls + 1) for program in itertools.product(KINDS, repeat=n)]
    return itertools.combinations_with_replacement(each, ranks)


@pytest.mark.parametrize(
    ("explore", "ranks", "calls"),
    [(in_all_orders, 2, 1), (in_all_orders, 3, 1), (in_one_order, 2, 3), (in_one_order, 3, 2)],
)
def test_no_rank_waits_for_ever(explore, ranks, calls):
    for combination in programs(ranks, calls):
        explore(combination)
