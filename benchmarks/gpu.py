"""Benchmark `gpu`: in twenty minutes on a machine with an NVIDIA GPU, everything that was never measured on one.

Each step is a process with a time limit, in the environment that has its libraries. A step that cannot run is skipped with its
reason, and a failed one does not stop the others. With ``device`` cpu the same steps run on a small scale on any machine, which
shows that they work; their figures mean nothing.
"""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import grpc.aio
from rich.table import Table

from benchmarks import aiperf, standard_client
from benchmarks.engine import ROOT
from benchmarks.gpu_run import prompts, traffic
from lpc.errors import LpcError
from lpc.model.versions import served_folder
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.terminal import console
from lpc_apps.simulator.kv_memory import kv_memory
from lpc_apps.simulator.model_forms import ModelConfigError
from testing.processes import Sidecar
from testing.vllm_settings import SETTINGS

Device = Literal["cpu", "cuda"]
Figures = dict[str, Any]

FOLDER: Final = Path("out/gpu")
MODEL: Final = "e5-small"
PRECISION: Final[dict[Device, str]] = {"cuda": "fp16", "cpu": "int8"}
LEAST_S: Final = 10.0
"""Seconds below which no further step begins."""
LOAD_PER_S: Final = 50
"""Predictions per second that other engines ask the sidecar for while the engine serves: what two CPU cores can carry."""
FOUND_TYPES: Final = ("llama", "qwen2", "qwen3")
"""Types of models that the search accepts: full attention in all layers, one kind of block."""
FOUND_BYTES: Final = 8 * 2**30
FOUND_CONTEXT: Final = 8_192
AGENTIC_TIMES: Final = (2.0, 4.0)
"""Contexts of AIPerf's sessions, in multiples of the engine's blocks."""
AGENTIC_LOAD_S: Final[dict[Device, float]] = {"cuda": 90.0, "cpu": 30.0}
AGENTIC_OPTIONS: Final = {"enforce-eager": True, "gpu-memory-utilization": 0.8}
AGENTIC_ROOM: Final = 0.4
"""Share of the GPU's memory for the blocks of AIPerf's sessions."""
NEEDED: Final = (
    "AIPerf's agentic-code needs three things that this step does not download: AIPerf (make aiperf), vLLM with this package "
    "(--engine-python), and a model with its tokenizer (--engine-model or the Hugging Face cache; else one is made). Missing: "
)
KEPT: Final = 0.6
"""Blocks of the engine, as a share of those of all live contexts."""


@dataclass(frozen=True)
class Scale:
    """Size of the engine's steps.

    Attributes:
        shape: config of the model that is made.
        conversations, opening, further: see `gpu_run.traffic`.
        block: tokens per block.
        options: options of vLLM's ``LLM``. Eager, so that five starts fit into ten minutes.
    """

    shape: Mapping[str, Any]
    conversations: int
    opening: int
    further: int
    block: int
    options: Mapping[str, Any]

    def blocks(self) -> int:
        """Return the number of blocks of the engine."""
        sent = traffic(conversations=self.conversations, opening=self.opening, further=self.further, vocabulary=100)
        live = max(sum(-(-len(prompt) // self.block) for prompt in asked) for asked in sent)
        longest = max(-(-len(prompt) // self.block) for asked in sent for prompt in asked)
        return max(int(KEPT * live), 2 * longest)


SCALES: Final[dict[Device, Scale]] = {
    "cuda": Scale(
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 8,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 16_384,
            "torch_dtype": "bfloat16",
        },
        *(32, 2_048, 512, 16),
        {"enforce_eager": True, "gpu_memory_utilization": 0.6, "block_size": 16},
    ),
    "cpu": Scale(
        {},
        *(8, 192, 96, 32),
        {"enforce_eager": True, "kv_cache_memory_bytes": 2**28, "dtype": "float32", "block_size": 32},
    ),
}


class Skipped(LpcError):
    """A step cannot run here; the message is the reason."""


class Failed(LpcError):
    """A step failed or exceeded its time limit."""


@dataclass(frozen=True)
class Step:
    """A step: its name, its time limit in seconds, and what it runs, given the seconds that it may take."""

    name: str
    limit_s: float
    run: Callable[[float], Figures]


def carried_out(
    steps: Sequence[Step], seconds: float, *, skip: str = "", note: Callable[[str], None] = lambda _: None
) -> list[Figures]:
    """Run all steps within a time; return a row for each: name, state (done, skipped, failed), reason, seconds, figures.

    Args:
        skip: reason to run none of them; empty: none.
        note: is called with a line for each step that ended.
    """
    rows: list[Figures] = []
    deadline = time.monotonic() + seconds
    for step in steps:
        began = time.monotonic()
        row: Figures = {"step": step.name, "state": "done", "reason": "", "figures": {}}
        try:
            if skip:
                raise Skipped(skip)
            if deadline - began < LEAST_S:
                raise Skipped("no time is left: give more with --minutes")
            row["figures"] = step.run(min(step.limit_s, deadline - began))
        except Skipped as skipped:
            row |= {"state": "skipped", "reason": str(skipped)}
        except (LpcError, OSError, subprocess.SubprocessError, grpc.RpcError) as error:
            row |= {"state": "failed", "reason": str(error).strip() or type(error).__name__}
        row["seconds"] = round(time.monotonic() - began, 1)
        rows.append(row)
        note(f"{step.name}: {row['state']} after {row['seconds']:.0f} s{': ' * bool(row['reason'])}{row['reason']}")
    return rows


def ended(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> str:
    """Return the output of a command, which is killed with its child processes at the time limit. Raises Failed.

    Args:
        log: file for what it prints to standard error.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or output.strip().splitlines()
        raise Failed(f"exit code {process.returncode}: {lines[-1][:200] if lines else 'no output'} (see {log.name})")
    return output


def figures_in(output: str) -> Figures:
    """Return the last line that is a JSON object. Raises Failed."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                figures: Figures = json.loads(line)
                return figures
    raise Failed("printed no figures")


def interpreter(named: Path | None, others: Sequence[str | Path | None], question: str, missing: str) -> str:
    """Return the first Python in which a program prints nothing. Raises Skipped with what the first one printed.

    Args:
        named: the only candidate if the user gave one.
        missing: the reason if there is no candidate.
    """
    reason = ""
    for candidate in [named] if named is not None else others:
        if candidate is None or shutil.which(str(candidate)) is None:
            continue
        asked = subprocess.run([candidate, "-c", question], env=_environment(), capture_output=True, text=True, timeout=120)
        if not asked.returncode and not asked.stdout.strip():
            return str(candidate)
        reason = reason or asked.stdout.strip() or (asked.stderr.strip().splitlines() or [missing])[-1]
    raise Skipped(reason or missing)


ASK_SIDECAR: Final = "from lpc.model.session import why_no_cuda; print(why_no_cuda() or '')"
ASK_ENGINE: Final = """
import importlib.util as u
lacks = [name for name in ('vllm', 'grpc', 'redis', 'pydantic_settings', 'prometheus_client') if not u.find_spec(name)]
if lacks:
    print(', '.join(lacks), 'not installed: pip install vllm==0.32.0 and this package, and give --engine-python')
elif DEVICE == 'cuda':
    import torch
    torch.cuda.is_available() or print('PyTorch finds no CUDA device')
"""


def found_model(caches: Sequence[Path], most_bytes: int = FOUND_BYTES) -> Path | None:
    """Return the largest model in Hugging Face caches that fits and that the plug-in serves whole; None: there is none."""
    found: list[tuple[int, str, Path]] = []
    for cache in caches:
        for file in cache.glob("models--*/snapshots/*/config.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                config = json.loads(file.read_text())
                weights = sum(part.stat().st_size for part in file.parent.glob("*.safetensors"))
                if (
                    config.get("model_type") in FOUND_TYPES
                    and "quantization_config" not in config
                    and not config.get("use_sliding_window")
                    and int(config.get("max_position_embeddings", 0)) >= FOUND_CONTEXT
                    and (file.parent / "tokenizer.json").exists()
                    and 0 < weights <= most_bytes
                ):
                    found.append((weights, str(file.parent), file.parent))
    return max(found)[-1] if found else None


def caches(environment: Mapping[str, str]) -> list[Path]:
    """Return the folder of Hugging Face's cache."""
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return [Path(environment.get("HF_HUB_CACHE") or home / "hub")]


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LPC_")}
    return {**kept, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **more}


@dataclass
class Bench:
    """The steps on one machine.

    Attributes:
        device: device of sidecar and engine.
        folder: folder for models and logs.
        engine_model: folder of the engine's model; None: one is found or made.
        engine_python, sidecar_python: Pythons of these environments; None: they are searched.
    """

    device: Device
    folder: Path = FOLDER
    engine_model: Path | None = None
    engine_python: Path | None = None
    sidecar_python: Path | None = None
    agentic: list[Figures] = field(default_factory=list)
    """Rows of AIPerf's table."""
    _load: standard_client.Load | None = None
    _digests: dict[str, list[str]] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def steps(self) -> list[Step]:
        """Return all steps. The image comes last, because its build may take all of the time."""
        sides = [Step(f"engine: {name}", 150, run) for name, run in self._sides()]
        return [
            Step("sidecar's model", 240, self._export),
            Step("predictions of the graph", 120, self._predictions),
            Step("predictions of the sidecar", 150, self._service),
            Step("engine's model", 180, self._model),
            *sides,
            *(Step(f"agentic-code, {times:g} times: {side}", 420, run) for times, side, run in self._agentic_sides()),
            Step("image of the sidecar", 420, self._image),
        ]

    def _agentic_sides(self) -> Iterator[tuple[float, str, Callable[[float], Figures]]]:
        for times in AGENTIC_TIMES:
            for side, learned in standard_client.SIDES.items():
                yield times, side, functools.partial(self._agentic, times, side, learned)

    def _agentic(self, times: float, side: str, learned: bool, seconds: float) -> Figures:
        """Serve AIPerf's agentic-code with `vllm serve`, and keep a row of its table."""
        missing = [why] if (why := aiperf.why_missing()) else []
        try:
            engine = self._agentic_engine()
        except Skipped as skipped:
            missing.append(str(skipped))
        if missing:
            raise Skipped(NEEDED + "; ".join(missing))
        if self._load is None:
            room = self._agentic_room()
            divisor, at_once = standard_client.fitted(engine.context, room, min(AGENTIC_TIMES))
            folder = self.folder / "agentic"
            self._load = standard_client.load_of(folder, divisor, at_once, AGENTIC_LOAD_S[self.device])
        row = standard_client.served(
            self.folder / "agentic", engine, self._load, times=times, learned=learned, seconds=seconds - self._load.seconds
        )
        self.agentic.append({"times": times, "side": side, **row})
        return {name: round(value, 3) for name, value in row.items()} | {"divisor": self._load.divisor}

    def _agentic_engine(self) -> standard_client.Engine:
        """Return the engine of AIPerf's steps. Raises Skipped."""
        python = self._vllm()
        if self.engine_model is None:
            raise Skipped("there is no model for the engine")
        if self.device == "cpu":
            return standard_client.tiny(python, self.engine_model.absolute())
        context = int(json.loads((self.engine_model / "config.json").read_text()).get("max_position_embeddings", FOUND_CONTEXT))
        quiet = {"VLLM_LOGGING_LEVEL": "WARNING"}
        return standard_client.Engine(python, self.engine_model.absolute(), context, 16, AGENTIC_OPTIONS, quiet)

    def _agentic_room(self) -> float:
        """Return the tokens for which the engine has memory. Raises Skipped: the model's configuration is not known."""
        if self.device == "cpu":
            return float("inf")
        memory = float(_output(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]).split()[0])
        try:
            per_token = kv_memory(str(self.engine_model)).per_token
        except (ModelConfigError, OSError) as error:
            raise Skipped(f"the engine's model: {error}") from error
        if not per_token:
            raise Skipped("the engine's model has no layers that keep every token")
        return AGENTIC_ROOM * memory * 2**20 / per_token

    def _sides(self) -> list[tuple[str, Callable[[float], Figures]]]:
        def plain(name: str, learned: bool) -> tuple[str, Callable[[float], Figures]]:
            return name, lambda seconds: self._engine(name, seconds, learned=learned)

        def shared(where: Device) -> tuple[str, Callable[[float], Figures]]:
            name = f"plug-in, sidecar on {where}"
            return name, lambda seconds: self._beside_sidecar(name, seconds, where)

        return [plain("stock", False), plain("plug-in", True), plain("stock again", False), shared("cpu"), shared("cuda")]

    def _sidecar(self, device: Device) -> str:
        if device == "cpu":
            return str(self.sidecar_python or sys.executable)
        around: list[str | Path | None] = [sys.executable, ROOT / ".venv-gpu" / "bin" / "python", shutil.which("python3")]
        return interpreter(self.sidecar_python, around, ASK_SIDECAR, "there is no Python with ONNX Runtime")

    def _vllm(self) -> str:
        own = ROOT / ".venv-engine" / "bin" / "python" if self.device == "cpu" else None
        question = ASK_ENGINE.replace("DEVICE", repr(self.device))
        missing = "vLLM is not installed: name its Python with --engine-python"
        return interpreter(self.engine_python, [own, shutil.which("python3"), sys.executable], question, missing)

    @property
    def _models(self) -> Path:
        return (self.folder / "models" / PRECISION[self.device]).absolute()

    def _step(self, python: str, log: str, seconds: float, job: Mapping[str, Any], **environment: str) -> Figures:
        command = [python, "-m", "benchmarks.gpu_run", json.dumps(job)]
        return figures_in(ended(command, _environment(**environment), self.folder / f"{log}.log", seconds))

    def _export(self, seconds: float) -> Figures:
        command = [sys.executable, "-m", "lpc_cli", "export", "--models", str(self._models), "--recipe", "lpc"]
        ended([*command, "--precision", PRECISION[self.device]], _environment(), self.folder / "export.log", seconds)
        return {"precision": PRECISION[self.device]}

    def _predictions(self, seconds: float) -> Figures:
        artefact = str(served_folder(self._models / MODEL))
        job = {"run": "predictions", "device": self.device, "artefact": artefact}
        return self._step(self._sidecar(self.device), "predictions", seconds, job)

    def _service(self, seconds: float) -> Figures:
        job = {"run": "service", "device": self.device, "models": str(self._models), "model": MODEL}
        return self._step(self._sidecar(self.device), "service", seconds, job)

    def _model(self, seconds: float) -> Figures:
        python = self._vllm()
        if self.engine_model is None and self.device == "cuda":
            self.engine_model = found_model(caches(os.environ))
        if self.engine_model is not None:
            return {"model": self.engine_model.name, "made": False}
        made = (self.folder / f"engine-model-{self.device}").absolute()
        shape = dict(SCALES[self.device].shape)
        self._step(python, "engine-model", seconds, {"run": "build_model", "folder": str(made), "shape": shape})
        self.engine_model = made
        return {"model": "random weights", "made": True}

    def _engine(self, name: str, seconds: float, *, learned: bool, address: str | None = None) -> Figures:
        python = self._vllm()
        if self.engine_model is None:
            raise Skipped("there is no model for the engine")
        scale = SCALES[self.device]
        more = {"LPC_PREDICTOR_ADDRESS": address, "LPC_SERVED_MODEL": "bench"} if address else {}
        quiet = SETTINGS if self.device == "cpu" else {"VLLM_LOGGING_LEVEL": "ERROR"}
        job = {
            "run": "engine",
            "model": str(self.engine_model),
            "learned": learned,
            "conversations": scale.conversations,
            "opening": scale.opening,
            "further": scale.further,
            "blocks": scale.blocks(),
            "options": dict(scale.options),
        }
        figures = self._step(python, name.replace(" ", "-").replace(",", ""), seconds, job, **quiet, **more)
        self._digests[name], self._seconds[name] = figures.pop("digests"), figures["seconds"]
        return figures | self._compared(name)

    def _compared(self, name: str) -> Figures:
        """Return a side's share of requests with the tokens of stock's first run, and its time over that of stock's runs."""
        stock = self._digests.get("stock")
        if name == "stock" or stock is None:
            return {}
        same = sum(a == b for a, b in zip(self._digests[name], stock, strict=True)) / len(stock)
        found = {"tokens_as_stock": round(same, 4), "time_to_stock": round(self._seconds[name] / self._seconds["stock"], 3)}
        if "sidecar" in name and "plug-in" in self._seconds:
            found["time_to_plugin_alone"] = round(self._seconds[name] / self._seconds["plug-in"], 3)
        return found

    def _beside_sidecar(self, name: str, seconds: float, where: Device) -> Figures:
        if where == "cuda" and self.device == "cpu":
            raise Skipped("the engine runs on the CPU")
        self._vllm()
        if self.engine_model is None:
            raise Skipped("there is no model for the engine")
        deadline = time.monotonic() + seconds
        home = self.folder / f"sidecar-{where}"
        python, served = self._sidecar(where), {"bench": str(self.engine_model.absolute())}
        with Sidecar(home.absolute(), self._models, MODEL, python=python, provider=where, served_models=served) as sidecar:
            with load(sidecar.address, LOAD_PER_S) as counts:
                found = self._engine(name, deadline - time.monotonic(), learned=True, address=sidecar.address)
            return found | {"predictions_of_others_per_second": LOAD_PER_S, **counts}

    def _image(self, seconds: float) -> Figures:
        docker = shutil.which("docker")
        if docker is None:
            raise Skipped("docker is not installed")
        if subprocess.run([docker, "info"], capture_output=True, timeout=20).returncode:
            raise Skipped("docker's daemon does not answer")
        target, began = ("gpu" if self.device == "cuda" else "cpu"), time.monotonic()
        tag = f"lpc-sidecar:bench-{target}"
        build = [docker, "build", "--target", target, "--build-arg", f"PRECISION={PRECISION[self.device]}", "--tag", tag, "."]
        ended(build, dict(os.environ), self.folder / "image.log", seconds)
        built = time.monotonic()
        gpus = ["--gpus", "all", "--env", "LPC_PROVIDER=cuda"] if self.device == "cuda" else []
        container = _output([docker, "run", "--detach", *gpus, tag])
        try:
            while "listening on " not in (log := _output([docker, "logs", container])):
                if (
                    time.monotonic() - began > seconds
                    or _output([docker, "ps", "--quiet", "--filter", f"id={container}"]) == ""
                ):
                    raise Failed(f"the container does not serve: {(log.splitlines() or ['no output'])[-1][:200]}")
                time.sleep(0.2)
            started = time.monotonic()
        finally:
            subprocess.run([docker, "rm", "--force", container], capture_output=True, timeout=60)
        size = int(_output([docker, "image", "inspect", "--format", "{{.Size}}", tag]))
        return {"build_s": round(built - began, 1), "start_s": round(started - built, 1), "image_mb": round(size / 1e6)}

    def described(self) -> str:
        """Return the load of AIPerf's steps and the model in words; empty: none ran."""
        load = self._load
        if load is None or self.engine_model is None:
            return ""
        divided = f", lengths and delays divided by {load.divisor}" if load.divisor > 1 else ""
        return f"{divided}, {load.at_once} sessions at a time for {load.seconds:.0f} s, model {self.engine_model.name}"


def _output(command: Sequence[str]) -> str:
    """Return what a command prints, both streams. Raises Failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode:
        raise Failed((done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200])
    return done.stdout.strip()


def no_gpu() -> str:
    """Return why this machine has no usable NVIDIA GPU; empty: it has one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "there is no NVIDIA GPU: nvidia-smi is not installed"
    try:
        listed = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    return "" if not listed.returncode and listed.stdout.strip() else "nvidia-smi lists no GPU"


@contextlib.contextmanager
def load(address: str, per_second: float) -> Iterator[dict[str, int]]:
    """Ask a sidecar for predictions at a rate, in a thread. The counts of requests are final at the end."""
    counts = {"answered": 0, "not_answered": 0}
    over = threading.Event()
    texts = prompts(50, seed=2)

    async def one(stub: Any, text: str) -> None:
        chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=text)])
        try:
            await stub.Predict(pb.PredictRequest(conversation=pb.Conversation(chat=chat)), timeout=2.0)
            counts["answered"] += 1
        except grpc.aio.AioRpcError:
            counts["not_answered"] += 1

    async def ask() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = rpc.ContinuationPredictorStub(channel)
            number, began, going = 0, time.monotonic(), set[asyncio.Task[None]]()
            while not over.is_set():
                going.add(asyncio.create_task(one(stub, texts[number % len(texts)])))
                number += 1
                going = {task for task in going if not task.done()}
                await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
            await asyncio.gather(*going)

    thread = threading.Thread(target=lambda: asyncio.run(ask()), daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join(10)


def run(bench: Bench, minutes: float) -> Figures:
    """Carry out all steps; print a table; return machine and rows."""
    screen = console()
    why = no_gpu() if bench.device == "cuda" else ""
    rows = carried_out(bench.steps(), 60 * minutes, skip=why, note=lambda line: screen.print(line, markup=False))
    table = Table("step", "state", "seconds", "figures", title=f"benchmark gpu on {bench.device}")
    for row in rows:
        shown = ", ".join(f"{name} {value}" for name, value in row["figures"].items()) or row["reason"]
        table.add_row(row["step"], row["state"], f"{row['seconds']:.0f}", shown)
    screen.print(table)
    if bench.agentic:
        screen.print(f"AIPerf {aiperf.VERSION}, agentic-code{bench.described()}, to post:", markup=False)
        screen.print(standard_client.report(bench.agentic), markup=False, soft_wrap=True)
    return {
        "device": bench.device,
        "gpu": "" if no_gpu() else _gpu(),
        "goal": {"predictions_per_second": 5_000, "memory_mib": 512},
        "steps": rows,
    }


def _gpu() -> str:
    return _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
