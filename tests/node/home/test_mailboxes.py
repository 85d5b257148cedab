"""Which of a stranger's addresses is its mailbox."""

import pytest

from dlx.node.home.mailboxes import LONGEST_ADDRESS, mailbox_of


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://bucket.example/dir/", "https://bucket.example/dir"),
        ("https://bucket.example:8443", "https://bucket.example:8443"),
        ("http://bucket.example/dir", None),
        ("file:///etc", None),
        ("s3://bucket/dir", None),
        ("https://me:word@bucket.example", None),
        ("https://bucket.example/?signature=1", None),
        ("https://bucket.example/#x", None),
        ("https://bucket.example/a b", None),
        ("https://bucket.example/\x1b[31m", None),
        ("https://b\u00fccket.example/", None),
        ("https://bucket.example/" + "x" * LONGEST_ADDRESS, None),
        ("/ip4/1.2.3.4/tcp/4650", None),
    ],
)
def test_only_a_plain_address_of_https_is_one(address: str, found: str | None) -> None:
    assert mailbox_of(["/ip4/1.2.3.4/tcp/1", address]) == found


def test_the_first_counts() -> None:
    assert mailbox_of(["https://?", "https://one", "https://two"]) == "https://one"
