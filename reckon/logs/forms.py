"""Forms of logs that tell a step in a line or a few: one table.

Sources of the forms (read November 2026, as public code and logs have them): NVIDIA/Megatron-LM
`megatron/training/training.py` (`training_log`), its forks AMD-AGI/Primus ('now/mean' pairs) and
bigscience-workshop/Megatron-DeepSpeed (seconds instead of milliseconds), Megatron-Bridge
(`Step Time :` lines), NVIDIA/NeMo documentation of `train_step_timing`, pytorch/torchtitan
`metrics.py` (`wps` before 2025), AI-Hypercomputer/maxtext `metric_logger.py`, microsoft/DeepSpeed
`utils/timer.py` (a running mean alone before 2022) and `runtime/pipe/engine.py`,
mosaicml/llm-foundry console logs of Composer, huggingface/nanotron `trainer.py` (since 2025 the
batch is in tokens, and the time is called otherwise), mlcommons/logging `mllog`, pytorch/torchtune
`training/metric_logging.py` (`DiskLogger`, `StdoutLogger`) @ 0019629b, karpathy/nanoGPT `train.py`
@ 005475c4, hiyouga/LLaMA-Factory `train/callbacks.py` (`LogCallback`) @ 0583d066.

Bars of NeMo write numbers of six figures and more by an exponent (tqdm's `format_num`); the step is
then that of the bar.
"""

from __future__ import annotations

from predictor.records import dataclass

NUMBER = r"([-+]?[\d.,]+(?:[eE][-+]?\d+)?[KMBT]?)"
"""A number as logs write it."""


@dataclass(frozen=True, slots=True)
class Form:
    """How one framework tells a step in a line.

    name        of the form
    framework   that it is of
    needs       of what every such line holds one
    number      pattern of the step's number, with the last one's behind it where it is told; empty
                where lines are not numbered
    told        (quantity, pattern before its number, factor)
    dialect     of the launch line that its arguments are (`reckon.launch`); empty: none
    without     what a line holds that looks alike and tells no step of training; empty: none does
    counted     pattern of a count of steps beside the number, and of the last one in that count;
                empty: there is none
    note        what is to be said of its figures; empty: nothing
    """

    name: str
    framework: str
    needs: tuple[str, ...]
    number: str
    told: tuple[tuple[str, str, float], ...]
    dialect: str = ""
    without: str = ""
    counted: str = ""
    note: str = ""

    def knows(self, line: str) -> bool:
        """Whether a line is one of this form."""
        found = any(text in line for text in self.needs)
        return found and not (self.without and self.without in line)


FORMS: dict[str, Form] = {
    one.name: one
    for one in (
        Form(
            "megatron", "megatron-lm", ("elapsed time per iteration (",),
            r"iteration\s+(\d+)\s*/\s*(\d+)",
            (
                ("seconds", r"elapsed time per iteration \(ms\): ", 1e-3),
                ("seconds", r"elapsed time per iteration \(s\): ", 1.0),
                ("tokens_per_s_per_gpu", r"tokens per gpu per second \(tgs\): ", 1.0),
                ("tokens_per_s_per_gpu", r"throughput \(token/sec/GPU\): ", 1.0),
                ("tokens_per_s_per_gpu", r"tokens per GPU \(tokens/s/GPU\): ", 1.0),
                ("global_batch", r"global batch size:\s*", 1.0),
                ("samples", r"consumed samples:\s*", 1.0),
                ("loss", r"lm loss: ", 1.0),
            ),
            "megatron",
        ),
        Form(
            "megatron-bridge", "megatron-bridge", ("Step Time :",), "",
            (("seconds", r"Step Time : ", 1.0),),
            "nemo",
        ),
        Form(
            "nemo", "nemo", ("train_step_timing in s",),
            r"(?:global_step\"?[:=]\s*|\|\s*(?=\d+/\d+ \[.*global_step=[\d.]+e))(\d+)(?![\d.]*e)",
            (
                ("seconds", r"train_step_timing in s\"?[:=]\s*", 1.0),
                ("global_batch", r"global_batch_size[:=]\s*", 1.0),
                ("samples", r"consumed_samples\"?[:=]\s*", 1.0),
                ("loss", r"reduced_train_loss\"?[:=]\s*", 1.0),
            ),
            "nemo",
            counted=r"Training epoch 0, iteration (\d+)/(\d+)",
        ),
        Form(
            "torchtitan", "torchtitan", ("tps:", "wps:"), r"step:\s*(\d+)",
            (
                ("tokens_per_s_per_gpu", r"[tw]ps:\s*", 1.0),
                ("memory_gib", r"memory:\s*", 1.0),
                ("loss", r"loss:\s*", 1.0),
            ),
            "torchtitan",
            "validate step:",
        ),
        Form(
            "maxtext", "maxtext", ("completed step:",), r"completed step: (\d+)",
            (
                ("seconds", r"seconds: ", 1.0),
                ("tokens_per_s_per_gpu", r"Tokens/s/device: ", 1.0),
                ("loss", r", loss: ", 1.0),
            ),
        ),
        Form(
            "nanotron", "nanotron", ("time_per_iteration_ms:",),
            r"iteration:\s*(\d+)\s*/\s*(\d+)",
            (
                ("seconds", r"time_per_iteration_ms: ", 1e-3),
                ("tokens_per_s", r"tokens_per_sec: ", 1.0),
                ("tokens_per_s_per_gpu", r"tokens_per_sec_per_gpu: ", 1.0),
                ("tokens", r"consumed_tokens: ", 1.0),
                ("global_batch", r"elapsed_time_per.*global_batch_size: ", 1.0),
                ("batch_tokens", r"\| time_per.*global_batch_size: ", 1.0),
                ("loss", r"lm_loss: ", 1.0),
            ),
        ),
        Form(
            "deepspeed", "deepspeed", ("CurrSamplesPerSec=", ", SamplesPerSec=", "iter time (s): "),
            r"(?:global_step=|\d+/|\bsteps: )(\d+)(?=, RunningAvg|, SamplesPerSec| loss: )",
            (
                ("seconds", r"iter time \(s\): ", 1.0),
                ("samples_per_s", r"CurrSamplesPerSec=", 1.0),
                ("samples_per_s", r", SamplesPerSec=", 1.0),
                ("samples_per_s", r"samples/sec: ", 1.0),
                ("memory_gib", r"MaxMemAllocated=", 1.0),
            ),
            "deepspeed",
        ),
        Form(
            "llm-foundry", "llm-foundry", ("Train ", "[batch="), r"\[batch=(\d+)/(\d+)\]",
            (
                ("batches_per_s", r"Train throughput/batches_per_sec: ", 1.0),
                ("samples_per_s", r"Train throughput/samples_per_sec: ", 1.0),
                ("tokens_per_s", r"Train throughput/tokens_per_sec: ", 1.0),
                ("tokens_per_s_per_gpu", r"Train throughput/device/tokens_per_sec: ", 1.0),
                ("samples", r"Train time/sample: ", 1.0),
                ("tokens", r"Train time/token: ", 1.0),
                ("micro_batch", r"Train trainer/device_train_microbatch_size: ", 1.0),
                ("reserved_gib", r"Train memory/peak_reserved_mem: ", 1e9 / 2**30),
                ("loss", r"Train loss/train/total: ", 1.0),
            ),
        ),
        Form(
            "torchtune", "torchtune", ("tokens_per_second_per_gpu:",), r"Step (\d+) \|",
            (
                ("tokens_per_s_per_gpu", r"tokens_per_second_per_gpu:", 1.0),
                ("memory_gib", r"peak_memory_alloc:", 1.0),
                ("reserved_gib", r"peak_memory_reserved:", 1.0),
                ("loss", r"\bloss:", 1.0),
            ),
            note="torchtune counts the tokens of the loss: where it leaves out prompts or padding "
            "(a data set that is not packed), steps are shorter than these rates say",
        ),
        Form(
            "nanogpt", "pytorch", ("ms, mfu ",), r"iter (\d+):",
            (("seconds", r"time ", 1e-3), ("loss", r"loss ", 1.0)),
        ),
        Form("mllog", "", (":::MLLOG",), "", ()),
        Form("trainer-log", "huggingface", ('"current_steps":',), "", ()),
        Form("trainer-bar", "huggingface", ("%|", "% "), "", ()),
    )
}  # fmt: skip
"""The forms by name; of two in one log, the one that stands first here counts."""
