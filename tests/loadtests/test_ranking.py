"""Virtual time and sockets, on the same real conversations: they put the policies in the same order."""

import asyncio

import pytest
from typer.testing import CliRunner

from loadtests.cli import app
from loadtests.conversations import load_conversations
from loadtests.drive import Target
from loadtests.kvcache import BLOCK_TOKENS
from loadtests.ranking import MEASURES, POLICIES, Retelling, Standing, order, standing, table
from loadtests.replay import BEGIN_WITHIN_S, replay, sessions
from loadtests.report import Spread
from loadtests.retold import RetoldSource
from loadtests.settings import Settings
from loadtests.stand import MAX_CONTEXT_TOKENS, PROFILE, Plan
from loadtests.vocabulary import small_tokenizer, vocabulary
from tests.fleet_fixtures import house
from tests.loadtests.test_demo import PORTS
from tests.ports import free_ports

SEED, USERS = 0, 1
TIME_SCALE = 0.2  # of the wire: hit rates hang on the order of things, little on their pace
NEAR = 0.2  # a busy machine is slow to answer, and prompts that come later find more cached
PLAN = Plan(port=0, engine_port=0, time_scale=TIME_SCALE)
WITHIN_S = 120.0


def test_people_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    conversations = load_conversations()
    people = sessions(conversations, 2, seed=3)
    assert people == sessions(conversations, 2, seed=3)
    assert people != sessions(conversations, 2, seed=4)
    assert len(people) == 2 * len(conversations)
    assert all(0 <= session.begins_s < BEGIN_WITHIN_S for session in people)
    assert all(len(session.thinks_s) == len(session.conversation.turns) for session in people)


def test_a_retold_turn_has_the_prompt_and_the_blocks_that_the_engine_would_see() -> None:
    words = vocabulary(small_tokenizer())
    people = sessions(load_conversations()[:1], 2)
    jobs = list(RetoldSource(people, words).jobs(1.0, 1.0))
    assert [job.at for job in jobs] == sorted(session.begins_s for session in people)
    first, other = jobs
    assert first.talk is not None
    shared = sum(one == two for one, two in zip(first.blocks, other.blocks, strict=False))
    assert shared * BLOCK_TOKENS <= first.system_tokens < (shared + 2) * BLOCK_TOKENS
    assert first.system_tokens < first.opening_tokens == first.prompt_tokens
    following = first.talk.next(9.0)
    assert (
        following.blocks[: first.opening_tokens // BLOCK_TOKENS] == first.blocks[: first.opening_tokens // BLOCK_TOKENS]
    )
    assert following.beginning(following.opening_tokens) == first.beginning(first.opening_tokens)
    assert len(following.blocks) == following.prompt_tokens // BLOCK_TOKENS
    session = min(people, key=lambda session: session.begins_s)
    assert first.talk.think_s() == session.thinks_s[1]
    assert following.output_tokens == session.conversation.turns[1].output_tokens
    left = first.talk.turns_left
    assert left == len(session.conversation.turns) - 2


async def over_sockets(policy: str) -> Standing:
    """Hold the conversations through a gateway and engines in this process."""
    settings = Settings(
        profile=PROFILE, time_scale=TIME_SCALE, tokenizer=small_tokenizer(), max_context_tokens=MAX_CONTEXT_TOKENS
    )
    models = [{"name": "sim", "tokenizer": small_tokenizer()}]
    endpoint = {"profile": PROFILE}
    async with asyncio.timeout(WITHIN_S), house(4, settings, policy=policy, endpoint=endpoint, models=models) as found:
        people = sessions(load_conversations(), USERS, SEED)
        run = await replay(Target(url=found.gateway.url), people, time_scale=TIME_SCALE)
        return standing(policy, run, TIME_SCALE)


async def test_sockets_and_virtual_time_rank_policies_alike_by_what_they_find_cached() -> None:
    people = sessions(load_conversations(), USERS, SEED)
    virtual = [Retelling(people, PLAN, policy, SEED).tell() for policy in POLICIES]
    wire = [await over_sockets(policy) for policy in POLICIES]
    assert [found.failed for found in (*wire, *virtual)] == [0] * 6
    by_hits = MEASURES["hit rate"]
    assert order(wire, by_hits) == order(virtual, by_hits) == ["least_work", "bounded_load", "round_robin"]
    for ours, theirs in zip(wire, virtual, strict=True):
        assert ours.hit_rate == pytest.approx(theirs.hit_rate, abs=NEAR), (ours, theirs)


def test_the_table_has_both_side_by_side() -> None:
    one = Standing("round_robin", 0.5, Spread(1.0, 0.1, 0.2, 0.3), Spread(None, None, None, None), 0)
    two = Standing("round_robin", 0.51, Spread(1.0, 0.11, 0.2, 2.5), Spread(None, None, None, None), 0)
    shown = table([one], [two])
    assert [next(iter(column.cells)) for column in shown.columns] == [
        "round_robin", "50.0% | 51.0%", "100 | 110", "200 | 200", "300 | 2,500",
    ]  # fmt: skip


@pytest.mark.soak
def test_the_command_writes_what_both_found() -> None:
    first = free_ports(PORTS)
    words = ["rank", "--users", "1", "--time-scale", "0.2", "--port", str(first), "--engine-port", str(first + 2)]
    result = CliRunner().invoke(app, [*words, "--json", "-"])
    assert result.exit_code == 0, result.output
    assert '"agree"' in result.stdout
