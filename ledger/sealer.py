"""Who sends a seal pays for it; a campaign of the run may give that back."""

from dlx.ground.constants import EPOCH_ROUNDS
from dlx.ground.errors import DlxError
from dlx.ledger.campaigns import Campaigns
from dlx.ledger.client import LedgerClient, Receipt
from dlx.ledger.errors import Reverted
from dlx.ledger.typed import Seal

_OWN_REFUSALS = frozenset({"WrongSeal", "UnknownCampaign"})  # the ledger would take the seal


class Sealer:
    """Sends seals through the campaign that refunds most of their gas, where there is one; else to the ledger."""

    def __init__(self, client: LedgerClient, campaigns: str) -> None:
        """`campaigns`: the address of their contract, empty where none is known."""
        self._client, self._address = client, campaigns
        self._refunding: tuple[tuple[bytes, int], tuple[Campaigns, int] | None] | None = None  # of the newest epoch

    def seal(self, seal: Seal, signatures: bytes) -> Receipt:
        """As `LedgerClient.seal`."""
        found = self._campaign(seal.run, seal.round // EPOCH_ROUNDS) if self._address else None
        if found is not None:
            campaigns, number = found
            try:
                return campaigns.seal(number, seal, signatures)
            except Reverted as refusal:
                if refusal.name not in _OWN_REFUSALS:
                    raise
        return self._client.seal(seal, signatures)

    def _campaign(self, run: bytes, epoch: int) -> tuple[Campaigns, int] | None:
        """Asked for once an epoch. What cannot be read costs a refund, and never a seal."""
        if self._refunding is None or self._refunding[0] != (run, epoch):
            try:
                campaigns = Campaigns(self._client, self._address)
                number = campaigns.refunding(run, epoch)
                self._refunding = (run, epoch), None if number is None else (campaigns, number)
            except DlxError:
                return None
        return self._refunding[1]
