"""What a request goes by on the ring: its system prompt, or the opening of its conversation.

The opening is system prompt and first user turn: it tells a conversation from others, and all turns share it. A request
that comes once has an opening that nobody will see again, and only its system prompt to share. So the key is the
opening once the prompt holds an answer, and the system prompt before: every gateway finds the same without remembering
anything.

Remembering openings ("the longest that was seen before") was tried and is worse: what one gateway has seen another has
not. Four gateways that share nothing, hit rates at fixed rates on one seed:

               system   opening   longest seen   once answered
    conv 50/s   .625      .682        .480           .673
    rag 20/s    .826      .464        .826           .826

One gateway has an index and fares alike with all (conv .595 to .602).
"""

from policies.request import BlockHash


def ring_key(system_key: BlockHash | None, opening_key: BlockHash | None, *, is_answered: bool) -> BlockHash | None:
    """Choose the key of a request.

    Args:
        system_key: Names its system prompt; None where it has none.
        opening_key: Names system prompt and first user turn; None where nothing is known of it.
        is_answered: It holds an answer to its first turn already.
    """
    if is_answered or system_key is None:
        return opening_key or system_key
    return system_key
