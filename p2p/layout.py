"""Which libp2p the guards were written for: its private parts that they rely on."""

import importlib.metadata
import inspect
from typing import Any

from libp2p.host.basic_host import BasicHost
from libp2p.kad_dht.kad_dht import KadDHT
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.protocol_muxer.generic_selector import GenericMultistreamSelector
from libp2p.protocol_muxer.multiselect import Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.mcache import MessageCache
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.noise.transport import Transport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from noise.state import CipherState

from dlx.ground.errors import DlxError

LIBP2P_VERSION = "0.8.1"


class GuardError(DlxError):
    """The installed libp2p is not the one that the guards were written for."""


def check_layout() -> None:
    """Raises GuardError when the private parts of libp2p that the guards use have changed."""
    version = importlib.metadata.version("libp2p")
    if version != LIBP2P_VERSION:
        raise GuardError(f"libp2p {version} is installed, this node needs exactly {LIBP2P_VERSION}")
    wanted: list[tuple[Any, str, tuple[str, ...]]] = [
        (BasicHost, "_swarm_stream_handler", ("self", "net_stream")),
        (BasicHost, "set_stream_handler", ("self", "protocol_id", "stream_handler")),
        (Swarm, "_handle_inbound_connection", ("self", "read_write_closer", "maddr")),
        (Swarm, "add_conn", ("self", "muxed_conn", "direction")),
        (Swarm, "dial_addr", ("self", "addr", "peer_id", "source")),
        (Swarm, "dial_addr_as_responder", ("self", "addr", "peer_id", "source")),
        (Swarm, "unblock_peer", ("self", "peer_id")),
        (AutoConnector, "maybe_connect", ("self",)),
        (MultiselectCommunicator, "read", ("self",)),
        (Multiselect, "negotiate", ("self", "communicator", "negotiate_timeout")),
        (MultiselectClient, "select_one_of", ("self", "protocols", "communicator", "negotiate_timeout")),
        (GenericMultistreamSelector, "select", ("self", "conn", "is_initiator", "negotiate_timeout")),
        (MuxerMultistream, "new_conn", ("self", "conn", "peer_id")),
        (MuxerMultistream, "_annotate_connection", ("muxed_conn", "secured_conn", "protocol")),
        (Transport, "secure_inbound", ("self", "conn")),
        (Transport, "secure_outbound", ("self", "conn", "peer_id")),
        (Yamux, "start", ("self",)),
        (Yamux, "open_stream", ("self",)),
        (Yamux, "accept_stream", ("self",)),
        (Yamux, "_write_frame", ("self", "data")),
        (Yamux, "handle_incoming", ("self",)),
        (SecureSession, "_drain", ("self", "n")),
        (CipherState, "encrypt_with_ad", ("self", "ad", "plaintext")),
        (CipherState, "decrypt_with_ad", ("self", "ad", "ciphertext")),
        (YamuxStream, "write", ("self", "data")),
        (YamuxStream, "_auto_tune_and_send_window_update", ("self", "bytes_read")),
        (YamuxStream, "send_window_update", ("self", "increment", "skip_lock")),
        (Yamux, "_read_data_body", ("self", "length")),
        (Yamux, "_cleanup_on_error", ("self",)),
        (Pubsub, "push_msg", ("self", "msg_forwarder", "msg")),
        (Pubsub, "write_msg", ("self", "stream", "rpc_msg")),
        (Pubsub, "continuously_read_stream", ("self", "stream")),
        (Pubsub, "_handle_dead_peer", ("self", "peer_id")),
        (GossipSub, "_get_peers_to_send", ("self", "topic_ids", "msg_forwarder", "origin", "msg_id")),
        (GossipSub, "publish", ("self", "msg_forwarder", "pubsub_msg")),
        (GossipSub, "emit_ihave", ("self", "topic", "msg_ids", "to_peer")),
        (GossipSub, "handle_rpc", ("self", "rpc", "sender_peer_id")),
        (GossipSub, "flush_pending_messages", ("self", "peer_id")),
        (GossipSub, "on_peer_subscribed", ("self", "peer_id", "topic")),
        (MessageCache, "put", ("self", "msg")),
        (KadDHT, "refresh_routing_table", ("self",)),
        (ProviderStore, "_get_providers_from_peer_with_closers", ("self", "peer_id", "key")),
    ]
    for owner, name, parameters in wanted:
        function = getattr(owner, name, None)
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            where = f"{owner.__name__}.{name}({', '.join(parameters)})"
            raise GuardError(f"libp2p {version}: {where} has changed; install {LIBP2P_VERSION}")
    yamux = Yamux(_Nothing(), ID(b"\x00"), is_initiator=True)  # type: ignore[arg-type]
    if not isinstance(yamux.stream_buffers, dict) or not isinstance(yamux.streams, dict):
        raise GuardError(f"libp2p {version}: the muxer keeps its buffers elsewhere; install {LIBP2P_VERSION}")


class _Nothing:
    is_initiator = True
