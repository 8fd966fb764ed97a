"""What training loops of `tools/loops.py` do besides Adam's step on one batch: other optimizers,
pairs of answers, weights that are stored in few bits, states that stay with the host.

    qlora16, int8lora16  as lora16; the frozen weights in NF4 (their constants quantised again), or
                 in 8 bits with outliers apart (LLM.int8), by bitsandbytes
    liger        Liger's kernels in transformers' model
    adam8bit     AdamW with moments in 8 bits, by bitsandbytes
    lion, sgd, adafactor, muon  by bitsandbytes, PyTorch, transformers, PyTorch (matrices of layers;
                 AdamW for all else)
    early        each weight is updated as its gradient comes, by fused AdamW
    dpo          of pairs, half the sequences chosen, half rejected, beside a reference
    hosted       activations that checkpoints keep go to the host and come back, by TRL
    zero2cpu, zero3cpu  DeepSpeed on one rank; optimizer (and weights) with the host
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

OPTIMIZERS = ("adam8bit", "lion", "sgd", "adafactor", "muon")
HOSTED = {"zero2cpu": 2, "zero3cpu": 3}


def quantised(module: Any, kind: str) -> None:
    """Linear layers of a model of transformers, all but the head, in few bits."""
    import bitsandbytes as bnb
    import torch

    causal = module.model
    for parent in list(causal.model.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is not torch.nn.Linear:
                continue
            sizes, bias = (linear.in_features, linear.out_features), linear.bias is not None
            if kind == "q":
                made = bnb.nn.Linear4bit(*sizes, bias, torch.bfloat16, True, "nf4", device="meta")
                made.weight = bnb.nn.Params4bit(
                    linear.weight.data, requires_grad=False, quant_type="nf4", module=made
                )
            else:
                made = bnb.nn.Linear8bitLt(
                    *sizes, bias, has_fp16_weights=False, threshold=6.0, device="meta"
                )
                made.weight = bnb.nn.Int8Params(
                    linear.weight.data, requires_grad=False, has_fp16_weights=False
                )
            if bias:
                made.bias = linear.bias
            where = linear.weight.device
            linear.weight.data = linear.weight.data.new_empty(0)
            setattr(parent, name, made.to(where))
    causal.is_loaded_in_4bit, causal.is_loaded_in_8bit = kind == "q", kind != "q"


def lighter(module: Any) -> None:
    """Liger's kernels in a model of transformers that is made. Its classes keep some of them: what
    is made later in the same process has norms, gates and rotations of Liger, too."""
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=module.model)


def _optimizers(module: Any, name: str) -> list[Any]:
    """What updates the weights of a module."""
    import torch

    trained = [one for one in module.parameters() if one.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return [Adafactor(trained, lr=1e-4, relative_step=False, scale_parameter=False)]
    if name == "sgd":
        return [torch.optim.SGD(trained, lr=1e-4)]
    if name == "muon":
        layers = {id(one) for one in module.model.model.layers.parameters() if one.ndim == 2}
        rest = [one for one in trained if id(one) not in layers]
        matrices = [one for one in trained if id(one) in layers]
        return [torch.optim.Muon(matrices, lr=1e-4), torch.optim.AdamW(rest, lr=1e-4, fused=True)]
    import bitsandbytes as bnb

    made = bnb.optim.AdamW8bit if name == "adam8bit" else bnb.optim.Lion
    return [made(trained, lr=1e-4)]


def _by_hooks(module: Any) -> list[Any]:
    """None that is called: each weight's own is, when its gradient has come. What hooks hold is not
    let go: the memory of loops that follow in the same process is too large."""
    import torch

    for one in module.parameters():
        if one.requires_grad:
            own = torch.optim.AdamW([one], lr=1e-4, fused=True)

            def update(parameter: Any, own: Any = own) -> None:
                own.step()
                own.zero_grad(set_to_none=True)

            one.register_post_accumulate_grad_hook(update)
    return []


def _preferred(module: Any, reference: Any) -> Callable[[Any, Any], Any]:
    """The loss of pairs (Rafailov et al. 2023, eq. 7) over tokens and targets, as TRL has it.

    reference  a model of its own; None: that of the module with its adapters off
    """
    import torch

    def told(model: Any, tokens: Any, target: Any) -> Any:
        logits = model(input_ids=tokens, use_cache=False).logits
        try:
            from trl.trainer.utils import selective_log_softmax
        except ImportError:
            from trl.trainer.dpo_trainer import selective_log_softmax
        return selective_log_softmax(logits, target).sum(-1)

    def loss(tokens: Any, target: Any) -> Any:
        own = told(module.model, tokens, target)
        with torch.no_grad():
            if reference is None:
                with module.model.disable_adapter():
                    other = told(module.model, tokens, target)
            else:
                other = told(reference.model, tokens, target)
        chosen, rejected = (own - other).chunk(2)
        return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()

    return loss


def _engine(module: Any, stage: int, check: Any, device: Any) -> Any:
    """DeepSpeed's engine of one rank, with sizes that HuggingFace's integration fills in."""
    import os

    import deepspeed

    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"),
                        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29577")):  # fmt: skip
        os.environ.setdefault(name, value)
    h = check.model.hidden
    zero: dict[str, Any] = {
        "stage": stage,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": h * h,
    }
    if stage == 3:
        zero |= {
            "offload_param": {"device": "cpu", "pin_memory": True},
            "sub_group_size": int(1e9),
            "stage3_prefetch_bucket_size": int(0.9 * h * h),
            "stage3_param_persistence_threshold": 10 * h,
            "stage3_max_live_parameters": int(1e9),
            "stage3_max_reuse_distance": int(1e9),
        }
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=[one for one in module.parameters() if one.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": check.sequences,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": device.on_gpu},
            "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "steps_per_print": 10**9,
        },
    )
    return engine


def step_of(
    check: Any, device: Any, module: Any, said: Iterable[str], reference: Callable[[], Any]
) -> Callable[[], object]:
    """A call that runs one whole step of a loop of such words.

    reference  makes a model of the module's kind
    """
    import torch

    from profiler import step

    said = set(said)
    shape = (check.sequences, check.seq_len)
    tokens, target = (
        torch.randint(check.model.vocab, shape, device=device.torch) for _ in range(2)
    )
    hosted = said & set(HOSTED)
    if hosted:
        engine = _engine(module, HOSTED[hosted.pop()], check, device)

        def stepped() -> None:
            engine.backward(engine(tokens, target))
            engine.step()

        return stepped
    named = said & set(OPTIMIZERS)
    if not said & {"dpo", "early", "hosted"} and not named:
        return step.step_of(check, device, module)
    trained = [one for one in module.parameters() if one.requires_grad]
    plain = [torch.optim.AdamW(trained, lr=1e-4, fused=True)] if "early" not in said else []
    optimizers = _optimizers(module, named.pop()) if named else plain
    if "early" in said:
        _by_hooks(module)
    loss: Callable[[Any, Any], Any] = module
    if "dpo" in said:
        other = None if hasattr(module.model, "disable_adapter") else reference()
        if other is not None:
            other.requires_grad_(False)
        loss = _preferred(module, other)
    around: Any = nullcontext()
    if "hosted" in said:
        from trl.models.activation_offloading import OffloadActivations

        around = OffloadActivations()

    def once() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with around:
            found = loss(tokens, target)
        found.backward()
        for optimizer in optimizers:
            optimizer.step()

    return once


def stated(said: Iterable[str], adapters: bool) -> dict[str, object]:
    """What a row says of such words."""
    said, found = set(said), dict[str, object]()
    for name in said & set(OPTIMIZERS):
        found |= {"optimizer": name, "optimizer_bytes": None}
    if "early" in said:
        found["update_early"] = 1
    if "liger" in said:
        found |= {"fused": 1, "fused_norm": 1, "logit_bytes": 2.0 / 32.0}
    if "dpo" in said:
        found |= {"learns_from": "dpo", "compared_with": "adapters" if adapters else "held"}
    if "hosted" in said:
        found["offload_activations"] = 1
    for name in said & set(HOSTED):
        stage = HOSTED[name]
        found |= {
            "framework": "deepspeed",
            "dp_sharding": f"zero{stage}",
            "offload_optimizer": 1,
            "offload_weights": int(stage == 3),
            "optimizer_bytes": 12.0,
        }
    return found
