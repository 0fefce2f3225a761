"""What lives around the head and the loss? The logits are the largest tensor of a small model.

All at once, or in chunks (`trainers.loss`), whose gradients are made in the forward pass: then the gradient of the
head's input and, in fp32, of its weight wait for the backward pass, and no logits do.
"""

from __future__ import annotations

from preflight.memory.activations import Layers
from preflight.memory.moments import NO_LAYERS, Moment, Scene, larger
from preflight.memory.numerics import FP32_BYTES, Numerics
from preflight.plan import Checkpointing


def forward(scene: Scene, casts: int) -> Moment:
    """The loss is there, and the final norm's output until the forward pass returns. Or: a block that is not kept."""
    work, states, acts = scene
    if work.loss_chunk_tokens:
        end = _forward_in_chunks(scene, casts)
    else:
        end = Moment(
            scene.everything_saved,
            states.kept_gradients,
            weight_casts=casts,
            working_tensors=acts.norm_output,
            logits_and_loss=work.numerics.loss_forward_bytes_per_logit * acts.logits,
            gathered_weights=states.gathered,
        )
    if work.recompute is Checkpointing.none:
        return end
    in_block = Moment(
        Layers(*(work.model.n_layer * part for part in acts.kept)),
        states.kept_gradients,
        weight_casts=casts - states.head_cast,
        working_tensors=acts.forward_working,
        gathered_weights=states.gathered + states.dequantised,
    )
    return larger(end, in_block)


def _forward_in_chunks(scene: Scene, casts: int) -> Moment:
    """Gradients of input and weight, and of the last chunk the logits or the product that is added to the latter."""
    work, states, acts = scene
    numerics = work.numerics
    weight_gradient = FP32_BYTES * states.head_gradient // numerics.weight
    product = numerics.product * states.head_gradient // numerics.weight
    previous = (
        numerics.product if acts.logits < work.n_tokens * work.model.vocab_size else 0
    )  # the last chunk's gradient
    logits = (previous + numerics.chunk_bytes_per_logit) * acts.logits
    if numerics.rounds_products:  # the head itself is rounded, once
        weight_gradient += product
    at_logits = Moment(
        scene.everything_saved,
        states.kept_gradients,
        weight_gradient,
        casts,
        acts.norm_output + acts.head_input,
        logits,
        states.gathered,
    )
    at_product = at_logits._replace(
        gradients_in_flight=weight_gradient + product, logits_and_loss=numerics.product * acts.logits
    )
    return larger(at_logits, at_product)


def loss_backward(scene: Scene, casts: int) -> Moment:
    """Log-probabilities and the logits' gradient. In chunks: gradients, and the same scaled."""
    work, states, acts = scene
    moment = Moment(scene.everything_saved, states.kept_gradients, weight_casts=casts, gathered_weights=states.gathered)
    if not work.loss_chunk_tokens:
        return moment._replace(logits_and_loss=work.numerics.loss_backward_bytes_per_logit * acts.logits)
    return moment._replace(
        gradients_in_flight=_scaled_gradient_bytes(work.numerics, states.head_gradient),
        working_tensors=acts.head_input + work.n_tokens * work.numerics.norm * work.model.n_embd,
        weight_casts=casts - states.head_cast,
    )


def _scaled_gradient_bytes(numerics: Numerics, gradient: int) -> int:
    """fp32, the same times the loss's own gradient, and where weights are 16-bit a copy in their type."""
    n_copies = 2 * FP32_BYTES + (numerics.weight if numerics.weight < FP32_BYTES else 0)
    return n_copies * gradient // numerics.weight


def head_backward(scene: Scene, casts: int) -> Moment:
    """The head's two matmuls; or, where weights were cast, its gradient beside the copy in the weights' own type."""
    work, states, acts = scene
    numerics = work.numerics
    product = numerics.compute * states.head_gradient // numerics.weight
    if numerics.rounds_products:  # before it is fp32 again
        product += numerics.product * states.head_gradient // numerics.weight
    cast_back = Moment(
        scene.everything_saved,
        states.kept_gradients,
        product + states.head_gradient,
        casts - states.head_cast,
        acts.head_input,
        gathered_weights=states.gathered,
    )
    if work.loss_chunk_tokens:
        return cast_back._replace(gradients_in_flight=states.head_gradient)
    matmuls = cast_back._replace(
        gradients_in_flight=product, weight_casts=casts, logits_and_loss=numerics.compute * acts.logits
    )
    return larger(matmuls, cast_back) if numerics.casts_weights else matmuls


def evaluation(scene: Scene, buckets: int, casts: int) -> Moment:
    """Nothing is kept for a backward pass: the widest block, or head and loss. Its batch may have another size."""
    work, states, acts = scene
    n_sequences = work.n_sequences if work.n_eval_sequences is None else work.n_eval_sequences
    if n_sequences == 0:
        return Moment(gradients=buckets)
    n_tokens = n_sequences * work.sequence_length
    n_logits = min(n_tokens, work.loss_chunk_tokens or n_tokens) * work.model.vocab_size
    numerics = work.numerics
    per_logit = numerics.loss_forward_bytes_per_logit
    if work.loss_chunk_tokens:  # beside the log-probabilities of the chunk before
        per_logit = numerics.chunk_bytes_per_logit + (FP32_BYTES if work.loss_chunk_tokens < n_tokens else 0)
    head_input = n_tokens * numerics.norm * work.model.n_embd
    block_working = acts.forward_working * n_sequences // work.n_sequences
    gathered = states.gathered + states.dequantised
    at_loss = Moment(NO_LAYERS, buckets, 0, casts, head_input, per_logit * n_logits, gathered)
    in_block = Moment(NO_LAYERS, buckets, 0, casts, block_working, 0, gathered)
    return larger(at_loss, in_block)
