"""vLLM's CPU offload tier under the scheduler plug-in: whether its policy works here, and how it gets there.

Where an ``OffloadingConnector`` is configured (``--kv-offloading-size``, ``--kv-transfer-config``, also within a
``MultiConnector``), and no ``eviction_policy`` is named, ours is, for as long as the scheduler is built: vLLM's own setting,
nothing of its code is touched. What an operator has named stays, ``lru`` too.

Only what no release can be without is imported of vLLM here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from eviction_client.engines.vllm_cpu import MODULE, POLICY

CONNECTOR: Final = "OffloadingConnector"


def find_incompatibility() -> str | None:
    """Return why the policy cannot work in the tier of the vLLM that is installed; None where it passed. Raises nothing.

    Compares a few evictions of two small tiers. For the plug-in's start, and for callers before that.
    """
    try:
        from eviction_client.engines.vllm_cpu import conformance

        return conformance.find_incompatibility()
    except ImportError as error:
        return f"its offload tier takes no policy of this kind ({error})"
    except Exception as error:
        return f"the check of its offload tier failed: {type(error).__name__}: {error}"


@dataclass
class Tiers:
    """What became of the offload tiers of one scheduler.

    Attributes:
        policies: ours, as vLLM made them; they are LRU until they are linked.
        reason: why there are none although a tier has a place for one; None where there is nothing to say.
    """

    policies: list[Any] = field(default_factory=list)
    reason: str | None = None

    @property
    def fallen_back(self) -> bool:
        """Whether a tier that has a place for our policy is vLLM's own LRU."""
        return self.reason is not None or any(policy.tier is None for policy in self.policies)

    def link(self, scheduler: Any, plugin: Any) -> None:
        """Let the reuse classes of the scheduler's requests order the tiers. Raises nothing."""
        try:
            shapes = list(_shapes_of(scheduler.connector))
            for number, policy in enumerate(self.policies):
                chunks = policy.cache_capacity
                shape = shapes[number] if len(shapes) == len(self.policies) else _Shape((), prompts_only=True)
                tier = plugin.add_tier(
                    f"cpu{number or ''}",
                    chunks,
                    blocks=int(chunks * shape.blocks_per_chunk),
                    prompts_only=shape.prompts_only,
                    named=lambda key: key[:-4],  # an OffloadKey ends with the number of its KV-cache group
                )

                def failed(error: Exception, tier: Any = tier) -> None:
                    plugin.drop_tier(tier)
                    plugin.failed(error)

                policy.link(tier, failed, shape.groups)
        except Exception as error:
            self.reason = f"{type(error).__name__}: {error}"


def built(build: Callable[[], Any], vllm_config: Any, *, wanted: bool) -> tuple[Any, Tiers]:
    """Return what ``build`` returns, a scheduler, with our policy in those of its tiers whose eviction nobody has named.

    Args:
        wanted: else vLLM's own stays.
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
        for extra in unnamed:  # whatever vLLM has made of them
            extra.pop("eviction_policy", None)
            extra.pop("cache_policy_module_path", None)


def _tiers_of(vllm_config: Any) -> Iterator[dict[str, Any]]:
    """Walk the extra configuration of each offloading connector."""
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
    """What a tier's chunks hold.

    Attributes:
        groups: of the KV cache, in each of which a prompt has chunks: number, and hashes of a chain that one of them covers.
        prompts_only: replies are not stored.
    """

    groups: Sequence[tuple[int, int]]
    prompts_only: bool

    @property
    def blocks_per_chunk(self) -> float:
        """Blocks, in the engine's hashes, that a chunk holds."""
        return 1.0 / sum(1.0 / scale for _, scale in self.groups) if self.groups else 1.0


def _shapes_of(connector: Any) -> Iterator[_Shape]:
    """Walk the offloading connectors."""
    for each in (connector, *getattr(connector, "_connectors", ())):
        config = getattr(getattr(each, "connector_scheduler", None), "config", None)
        groups = getattr(config, "kv_group_configs", ())
        if config is not None and groups:
            shape = [(group.group_idx, group.hashes_per_chunk) for group in groups]
            yield _Shape(shape, prompts_only=bool(config.offload_prompt_only))
