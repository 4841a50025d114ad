"""The configuration: one tree of frozen models, one row a setting, every bound checked here.

``configs/reference.yaml`` shows every setting at its default; a test holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from loaderd_server.units import parse_size

Size = Annotated[int, BeforeValidator(parse_size)]
_TARGET = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
TargetName = Annotated[str, Field(pattern=_TARGET)]
#: Largest seed: torch's generators take 64 bits.
_MOST_SEED = 2**63 - 2**33


class Model(BaseModel):
    """Frozen, and no key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetConfig(Model):
    """A callable on the python path, and its keyword arguments."""

    target: TargetName
    args: dict[str, Any] = {}


class SourceConfig(Model):
    """One of the datasets of a mixture."""

    dataset: str | TargetConfig
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    sampler: Literal["sequential", "random"] | None = None


class MixtureConfig(Model):
    """Several datasets as one; ``samples`` is the length of an epoch where sources repeat."""

    mixture: list[SourceConfig] = Field(min_length=1, max_length=1024)
    exhausted: Literal["stop", "repeat", "drop"] = "stop"
    samples: int | None = Field(None, ge=1, le=2**30)

    @model_validator(mode="after")
    def _ends_once(self) -> MixtureConfig:
        if self.samples is not None and self.exhausted != "repeat":
            raise ValueError(
                f"samples is given, but with exhausted: {self.exhausted} the sources end the epoch; "
                f"set exhausted: repeat, or leave samples out"
            )
        return self


def _kind_of_dataset(value: object) -> str:
    """Which of the three a stream's dataset is, so that only its own errors are told."""
    if isinstance(value, dict):
        is_target = "target" in value or not value.keys() & MixtureConfig.model_fields.keys()
        return "TargetConfig" if is_target else "MixtureConfig"
    return type(value).__name__ if isinstance(value, Model) else "name"


DatasetChoice = Annotated[
    Annotated[str, Tag("name")]
    | Annotated[TargetConfig, Tag("TargetConfig")]
    | Annotated[MixtureConfig, Tag("MixtureConfig")],
    Discriminator(_kind_of_dataset),
]


class WorkersConfig(Model):
    """The processes that load, transform and collate."""

    count: int = Field(2, ge=1, le=256)
    start_method: Literal["fork", "spawn"] = "fork"
    timeout_s: float | None = Field(60.0, gt=0)
    idle_s: float | None = Field(300.0, gt=0)
    max_rss: Size | None = Field(None, gt=0)
    depth: int = Field(2, ge=1, le=16)
    affinity: Literal["none", "cores", "numa"] = "none"
    niceness: int = Field(0, ge=-20, le=19)
    worker_init: TargetName | None = None


class WeightedConfig(Model):
    """torch's WeightedRandomSampler. ``weights``: a list, or a target called with the dataset."""

    weights: list[float] | TargetName
    num_samples: int | None = Field(None, ge=1)
    replacement: bool = True


class SubsetConfig(Model):
    """torch's SubsetRandomSampler; in the given order where ``shuffle`` is false."""

    indices: list[int]
    shuffle: bool = True


class SamplerConfig(Model):
    """How an epoch's order is drawn; exactly one of the four."""

    weighted: WeightedConfig | None = None
    subset: SubsetConfig | None = None
    target: TargetName | None = None
    batch_target: TargetName | None = None
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_of_them(self) -> SamplerConfig:
        names = ("weighted", "subset", "target", "batch_target")
        chosen = [name for name in names if getattr(self, name) is not None]
        if len(chosen) != 1:
            raise ValueError(f"needs exactly one of {', '.join(names)}; has {chosen or 'none'}")
        if self.args and chosen[0] in ("weighted", "subset"):
            raise ValueError(f"args belong to target or batch_target, not to {chosen[0]}")
        return self


class OnErrorConfig(Model):
    """What becomes of a sample that fails, and how many may."""

    policy: Literal["raise", "skip", "substitute"] = "raise"
    max_count: int | None = Field(None, ge=0)
    max_rate: float | None = Field(None, ge=0, le=1)


class AwaitConfig(Model):
    """How many trainers must have started before anything is made, and for how long they are awaited."""

    count: int = Field(ge=1, le=4096)
    timeout_s: float | None = Field(None, gt=0)


class StreamConfig(Model):
    """A deterministic sequence of batches."""

    dataset: DatasetChoice
    mode: Literal["broadcast", "shard", "queue", "independent"] = "broadcast"
    lag: Literal["follow", "wait"] = "follow"
    patience_s: float = Field(30.0, gt=0)
    window: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = "auto"
    await_trainers: AwaitConfig | None = None
    redeliver: bool = True
    shards: int = Field(1, ge=1, le=4096)
    batch_size: int | None = Field(None, ge=1, le=2**20)
    drop_last: bool = False
    sampler: Literal["sequential", "random"] | SamplerConfig = "random"
    seed: int = Field(0, ge=0, le=_MOST_SEED)
    transform: list[str | dict[str, Any]] = []
    collate: Literal["default"] | TargetName | TargetConfig = "default"
    on_error: OnErrorConfig = OnErrorConfig()
    slot_bytes: Size | Literal["auto"] = "auto"
    slots: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = "auto"

    @field_validator("slot_bytes", mode="before")
    @classmethod
    def _slot_bytes(cls, value: object) -> object:
        return value if value == "auto" else parse_size(value)

    @field_validator("slot_bytes")
    @classmethod
    def _some_bytes(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{value} bytes hold no batch")
        return value

    @field_validator("on_error", mode="before")
    @classmethod
    def _policy_alone(cls, value: object) -> object:
        return {"policy": value} if isinstance(value, str) else value

    @field_validator("transform")
    @classmethod
    def _known_form(cls, value: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        for item in value:
            if isinstance(item, dict) and "target" in item:
                TargetConfig.model_validate(item)
            elif isinstance(item, dict) and not (
                len(item) == 1 and isinstance(next(iter(item.values())), dict | None)
            ):
                raise ValueError(
                    f"{item!r} is no transform; write a name, {{name: {{arg: value}}}}, or "
                    f"{{target: 'module:callable', args: {{...}}}}"
                )
        return value

    @model_validator(mode="after")
    def _order_of_a_mixture(self) -> StreamConfig:
        is_mixture = isinstance(self.dataset, MixtureConfig)
        if is_mixture and isinstance(self.sampler, SamplerConfig):
            raise ValueError(
                "a mixture draws its own order, by its weights: sampler can only be random or "
                "sequential, which is how each source is walked. For a sampler of your own over "
                "several datasets, make them one dataset (torch.utils.data.ConcatDataset)"
            )
        return self

    @model_validator(mode="after")
    def _size_of_batches(self) -> StreamConfig:
        cuts = isinstance(self.sampler, SamplerConfig) and self.sampler.batch_target is not None
        if cuts and self.batch_size is not None:
            raise ValueError("batch_size is given, but sampler.batch_target cuts the batches")
        if not cuts and self.batch_size is None:
            raise ValueError("batch_size is missing")
        return self


class Config(Model):
    """The whole file."""

    python_path: list[str] = ["."]
    memory: Size = Field(4 * 2**30, gt=0, validate_default=True)
    reserve: Size = Field(256 * 2**20, ge=0, validate_default=True)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    workers: WorkersConfig = WorkersConfig()
    datasets: dict[str, TargetConfig] = {}
    streams: dict[str, StreamConfig] = Field(min_length=1)
