"""Routing rules of others, written by us from what they published, to compare with. Nothing here serves.

Each is a `policies.policy.Policy` over the same books and the same index as ours, so that what differs is the rule
alone. In their formulas R is the requests in flight at an endpoint, m the tokens of a prompt of L tokens that are
probably cached there. Ties fall at random.
"""
