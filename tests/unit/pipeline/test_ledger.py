"""The token account: closes, or says by how much it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.algorithm.effective import Spent
from scalerl.pipeline.ledger import Ledger, LedgerError


def test_a_literal_account() -> None:
    ledger = Ledger()
    ledger.use(Spent(trained=50, masked=3, filtered=20, truncated=7, discarded={"skipped": 4}))
    ledger.end_generator("generator lost", generated=30, in_flight=5)
    assert ledger.close(generated=80, in_flight=6, waiting=15) == {
        "generated": 110,
        "trained": 50,
        "masked": 3,
        "filtered": 20,
        "truncated": 7,
        "discarded": 9,
        "waiting": 21,
    }
    assert ledger.discarded == {"skipped": 4, "generator lost": 5}


@given(
    spent=st.lists(st.tuples(*[st.integers(0, 99)] * 5), max_size=8),
    waiting=st.integers(0, 99),
    in_flight=st.integers(0, 99),
    lost=st.integers(0, 99),
    error=st.integers(-3, 3),
)
def test_it_closes_exactly_when_every_token_is_somewhere(
    spent: list[tuple[int, ...]], waiting: int, in_flight: int, lost: int, error: int
) -> None:
    ledger = Ledger()
    for trained, masked, filtered, truncated, skipped in spent:
        ledger.use(
            Spent(
                trained=trained,
                masked=masked,
                filtered=filtered,
                truncated=truncated,
                discarded={"skipped": skipped},
            )
        )
    ledger.end_generator("lost", generated=lost, in_flight=lost)
    generated = sum(map(sum, spent)) + waiting + in_flight + error
    if error:
        with pytest.raises(LedgerError, match="tokens were generated but"):
            ledger.close(generated=generated, in_flight=in_flight, waiting=waiting)
    else:
        row = ledger.close(generated=generated, in_flight=in_flight, waiting=waiting)
        assert row["generated"] == sum(v for k, v in row.items() if k != "generated")
