"""Installs our policy in vLLM's CPU offload tier under the scheduler plug-in, if it works there.

If an ``OffloadingConnector`` is configured (``--kv-offloading-size``, ``--kv-transfer-config``, also within a
``MultiConnector``) without an ``eviction_policy``, vLLM's own setting names our policy while the scheduler is built. No code of
vLLM is patched. An operator's ``eviction_policy`` stays, including ``lru``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from eviction_client.engines.vllm_cpu import MODULE, POLICY

CONNECTOR: Final = "OffloadingConnector"


def find_incompatibility() -> str | None:
    """Return why the policy does not work in the installed vLLM's tier, None if it does. Raises nothing.

    Compares a few evictions of two small tiers.
    """
    try:
        from eviction_client.engines.vllm_cpu import conformance

        return conformance.find_incompatibility()
    except ImportError as error:
        return f"its offload tier does not accept this policy ({error})"
    except Exception as error:
        return f"the check of its offload tier failed: {type(error).__name__}: {error}"


@dataclass
class Tiers:
    """The offload tiers of one scheduler.

    Attributes:
        policies: our policies, as created by vLLM; they are LRU until they are linked.
        reason: why a tier that could have our policy does not; None without such a tier.
    """

    policies: list[Any] = field(default_factory=list)
    reason: str | None = None

    def holds(self, block: Any) -> bool:
        """Return whether the tier holds a block of the pool, if there is one tier with a chunk for each block.

        A chunk's key is then the block's hash with its KV-cache group, in vLLM's pool and in its tier alike.
        """
        return len(self.policies) == 1 and self.policies[0].get(block.block_hash) is not None

    @property
    def fallen_back(self) -> bool:
        """Whether a tier that could have our policy is under vLLM's own LRU."""
        return self.reason is not None or any(policy.tier is None for policy in self.policies)

    def link(self, scheduler: Any, plugin: Any) -> None:
        """Connect the policies to the plug-in, which orders the tiers by reuse class. Raises nothing."""
        try:
            shapes = list(_shapes_of(scheduler.connector))
            for number, policy in enumerate(self.policies):
                chunks = policy.cache_capacity
                shape = shapes[number] if len(shapes) == len(self.policies) else _Shape((), prompts_only=True)
                one = len(self.policies) == 1 and [scale for _, scale in shape.groups] == [1]
                tier = plugin.add_tier(
                    f"cpu{number or ''}",
                    chunks,
                    blocks=int(chunks * shape.blocks_per_chunk),
                    prompts_only=shape.prompts_only,
                    divided=one and not plugin.settings.tenant_floors and scheduler.lpc.queue is not None,
                    named=lambda key: key[:-4],  # an OffloadKey ends with the number of its KV-cache group
                )

                def failed(error: Exception, tier: Any = tier) -> None:
                    plugin.drop_tier(tier)
                    plugin.failed(error)

                policy.link(tier, failed, shape.groups)
        except Exception as error:
            self.reason = f"{type(error).__name__}: {error}"


def build_scheduler(build: Callable[[], Any], vllm_config: Any, *, wanted: bool) -> tuple[Any, Tiers]:
    """Return the scheduler that ``build`` returns, with our policy in its tiers that have no ``eviction_policy``.

    Args:
        wanted: whether to install our policy.
    """
    extras = list(_tiers_of(vllm_config)) if wanted else []
    if not any(extra.get("eviction_policy", POLICY) == POLICY for extra in extras):
        return build(), Tiers()
    if (reason := find_incompatibility()) is not None:
        return build(), Tiers(reason=reason)
    from eviction_client.engines.vllm_cpu.policy import policies_made

    unnamed = [extra for extra in extras if "eviction_policy" not in extra]
    try:
        for extra in unnamed:
            extra.update(eviction_policy=POLICY, cache_policy_module_path=MODULE)
        with policies_made() as policies:
            return build(), Tiers(policies)
    finally:
        for extra in unnamed:
            extra.pop("eviction_policy", None)
            extra.pop("cache_policy_module_path", None)


def _tiers_of(vllm_config: Any) -> Iterator[dict[str, Any]]:
    """Yield the extra configuration of each offloading connector."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    if transfer is None:
        return
    if transfer.kv_connector == CONNECTOR:
        yield transfer.kv_connector_extra_config
    elif transfer.kv_connector == "MultiConnector":
        for connector in transfer.kv_connector_extra_config.get("connectors", ()):
            if connector.get("kv_connector") == CONNECTOR:
                yield connector.setdefault("kv_connector_extra_config", {})


@dataclass(frozen=True)
class _Shape:
    """The content of a tier's chunks.

    Attributes:
        groups: KV-cache groups: number, and block hashes that one chunk covers. A prompt has chunks in each.
        prompts_only: replies are not stored.
    """

    groups: Sequence[tuple[int, int]]
    prompts_only: bool

    @property
    def blocks_per_chunk(self) -> float:
        """Number of the engine's block hashes per chunk, over all groups."""
        return 1.0 / sum(1.0 / scale for _, scale in self.groups) if self.groups else 1.0


def _shapes_of(connector: Any) -> Iterator[_Shape]:
    """Yield the shape of each offloading connector's tier."""
    for each in (connector, *getattr(connector, "_connectors", ())):
        config = getattr(getattr(each, "connector_scheduler", None), "config", None)
        groups = getattr(config, "kv_group_configs", ())
        if config is not None and groups:
            shape = [(group.group_idx, group.hashes_per_chunk) for group in groups]
            yield _Shape(shape, prompts_only=bool(config.offload_prompt_only))
