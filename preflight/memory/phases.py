"""Which tensors live at the same time? The moments of a step and of an evaluation that can be the peak, term by term.

GPT-2-sized models peak when the loss is differentiated (the logits), deep ones when the first layer's backward begins,
large ones with few tokens at the end of the backward pass, when all gradients are there.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.memory.activations import Activations, Layers, activations_of
from preflight.memory.states import States, states_of
from preflight.memory.workload import Workload

TOKEN_BYTES = 8  # int64
N_BATCHES = 2  # the one in work and the one fetched for the next pass
NO_LAYERS = Layers(0, 0, 0, 0)

# Terms that grow with the micro-batch; the others depend on the model alone.
TOKEN_TERMS = (
    "inputs",
    "activations_residual",
    "activations_attention",
    "activations_mlp",
    "activations_norms",
    "working_tensors",
    "logits_and_loss",
)


class Moment(NamedTuple):
    """Bytes beyond weights, optimizer states and inputs, which are always there."""

    saved: Layers = NO_LAYERS
    gradients: int = 0
    gradients_in_flight: int = 0
    weight_casts: int = 0
    working_tensors: int = 0
    logits_and_loss: int = 0

    @property
    def fixed_bytes(self) -> int:
        """What the model alone decides."""
        return self.gradients + self.gradients_in_flight + self.weight_casts

    @property
    def token_bytes(self) -> int:
        """What grows with the micro-batch."""
        return sum(self.saved) + self.working_tensors + self.logits_and_loss


class Phases(NamedTuple):
    """One rank in the steady state: Adam's moments exist."""

    n_params: int
    weights: int
    optimizer_states: int
    inputs: int
    loss_hole: int  # free memory between living tensors at the loss's backward pass
    layer_activations: int  # of one layer, whole
    layers_gradients: int  # of all layers, without embeddings and head
    moments: dict[str, Moment]

    def token_bytes(self, name: str) -> int:
        """The part of a phase that grows with the micro-batch."""
        return self.inputs + self.moments[name].token_bytes

    def totals(self, token_factor: float) -> dict[str, float]:
        """Bytes of each phase, what grows with the micro-batch multiplied by a factor."""
        always = self.weights + self.optimizer_states + token_factor * self.inputs
        return {
            name: always + moment.fixed_bytes + token_factor * moment.token_bytes
            for name, moment in self.moments.items()
        }


def phases_of(work: Workload) -> Phases:
    """Every moment that can be the peak."""
    states, acts = states_of(work), activations_of(work)
    kept_logits = work.numerics.compute * acts.logits if work.keeps_logits else 0
    everything = _everything_saved(work, acts)
    all_casts = work.model.n_layer * states.layer_casts + states.head_cast
    left_casts = states.head_cast if work.recomputes_blocks else all_casts  # autocast forgets what nothing saved
    between_steps = states.gradients if work.has_buckets else 0  # gradients are gone (set_to_none), buckets are not
    return Phases(
        n_params=states.n_params,
        weights=states.weights,
        optimizer_states=states.optimizer + states.bucket_copies,
        inputs=2 * N_BATCHES * TOKEN_BYTES * work.n_tokens + kept_logits,
        loss_hole=0 if work.keeps_logits else work.numerics.loss_hole_bytes_per_logit * acts.logits,
        layer_activations=sum(acts.layer),
        layers_gradients=work.model.n_layer * states.layer_gradient,
        moments={
            "forward": _forward(work, states, acts, everything, all_casts),
            "loss_backward": Moment(
                everything,
                states.kept_gradients,
                weight_casts=left_casts,
                logits_and_loss=work.numerics.loss_backward_bytes_per_logit * acts.logits,
            ),
            "head_backward": _head_backward(work, states, acts, everything, left_casts),
            "layer_backward": _layer_backward(work, states, acts),
            "backward_end": _backward_end(work, states, acts),
            "optimizer_step": Moment(gradients=states.gradients, gradients_in_flight=states.optimizer_working),
            "evaluation": _evaluation(work, acts, between_steps, all_casts),
            "checkpoint": Moment(gradients=between_steps),
        },
    )


def terms_of(phases: Phases, name: str, token_factor: float) -> dict[str, int]:
    """One phase's working."""
    moment = phases.moments[name]
    terms = {
        "weights": phases.weights,
        "gradients": moment.gradients,
        "gradients_in_flight": moment.gradients_in_flight,
        "optimizer_states": phases.optimizer_states,
        "weight_casts": moment.weight_casts,
        "activations_residual": moment.saved.residual,
        "activations_attention": moment.saved.attention,
        "activations_mlp": moment.saved.mlp,
        "activations_norms": moment.saved.norms,
        "working_tensors": moment.working_tensors,
        "logits_and_loss": moment.logits_and_loss,
        "inputs": phases.inputs,
    }
    if token_factor != 1.0:
        terms |= {term: round(token_factor * terms[term]) for term in TOKEN_TERMS}
    return terms


def _everything_saved(work: Workload, acts: Activations) -> Layers:
    """What the whole forward pass keeps: every layer, or with recomputation every block's input; and the final norm."""
    n_layer = work.model.n_layer
    if work.recomputes_blocks:
        return Layers(n_layer * acts.block_input + acts.final_norm, 0, 0, 0)
    residual, attention, mlp, norms = acts.layer
    return Layers(n_layer * residual + acts.final_norm, n_layer * attention, n_layer * mlp, n_layer * norms)


def _forward(work: Workload, states: States, acts: Activations, everything: Layers, casts: int) -> Moment:
    """The loss is there, and the final norm's output until the forward pass returns. Or: a block that is not kept."""
    end = Moment(
        everything,
        states.kept_gradients,
        weight_casts=casts,
        working_tensors=acts.norm_output,
        logits_and_loss=work.numerics.loss_forward_bytes_per_logit * acts.logits,
    )
    if not work.recomputes_blocks:
        return end
    in_block = Moment(
        Layers(work.model.n_layer * acts.block_input, 0, 0, 0),
        states.kept_gradients,
        weight_casts=casts - states.head_cast,
        working_tensors=acts.forward_working,
    )
    return _larger(end, in_block)


def _head_backward(work: Workload, states: States, acts: Activations, everything: Layers, casts: int) -> Moment:
    """The head's two matmuls; or, where weights were cast, its gradient beside the copy in the weights' own type."""
    numerics, model = work.numerics, work.model
    matmul_gradient = numerics.compute * model.vocab_size * model.n_embd
    matmuls = Moment(
        everything,
        states.kept_gradients,
        matmul_gradient,
        casts,
        working_tensors=acts.head_working,
        logits_and_loss=numerics.compute * acts.logits,
    )
    if not numerics.casts_weights:
        return matmuls
    cast_back = Moment(
        everything,
        states.kept_gradients,
        matmul_gradient + states.head_gradient,
        casts - states.head_cast,
        working_tensors=acts.head_working,
    )
    return _larger(matmuls, cast_back)


def _layer_backward(work: Workload, states: States, acts: Activations) -> Moment:
    """From the last layer to the first, activations go and gradients come, both evenly: an end is the peak."""
    last = _backward_of_layer(work, states, acts, work.model.n_layer)
    return _larger(last, _backward_of_layer(work, states, acts, 1))


def _backward_of_layer(work: Workload, states: States, acts: Activations, n_left: int) -> Moment:
    """`n_left` layers' activations are left, the current one's included; it is recomputed first if it was not kept."""
    residual, attention, mlp, norms = acts.layer
    if work.recomputes_blocks:
        saved, n_cast = Layers(residual + (n_left - 1) * acts.block_input, attention, mlp, norms), 1
    else:
        saved, n_cast = Layers(n_left * residual, n_left * attention, n_left * mlp, n_left * norms), n_left
    waiting = 0
    if work.keeps_gradients:
        gradients = states.kept_gradients
        waiting = states.head_gradient if work.model.tied_head else 0
    else:
        gradients = states.head_gradient + (work.model.n_layer - n_left) * states.layer_gradient
    return Moment(
        saved,
        gradients,
        states.widest_matrix + waiting,
        n_cast * states.layer_casts,
        acts.backward_working,
    )


def _backward_end(work: Workload, states: States, acts: Activations) -> Moment:
    """The embeddings' gradients are made dense; a tied one is added to the head's, then to what is kept.

    Autograd adds in place only into a tensor that nobody shares: a cast one, but not a matmul's transposed result.
    """
    n_waiting, n_kept = int(work.model.tied_head), int(work.keeps_gradients)
    n_sums = n_waiting * (not work.numerics.casts_weights)
    token = (n_waiting + n_sums + n_kept) * states.head_gradient
    position = n_waiting * n_kept * states.head_gradient + (1 + n_kept) * states.position_gradient
    return Moment(
        gradients=states.gradients,
        gradients_in_flight=max(token, position),
        working_tensors=acts.block_input,
    )


def _evaluation(work: Workload, acts: Activations, buckets: int, casts: int) -> Moment:
    """Nothing is kept for a backward pass: the widest block, or head and loss."""
    loss = work.numerics.loss_forward_bytes_per_logit * acts.logits
    if acts.block_input + loss > acts.forward_working:
        return Moment(NO_LAYERS, buckets, 0, casts, acts.block_input, loss)
    return Moment(NO_LAYERS, buckets, 0, casts, acts.forward_working)


def _larger(one: Moment, other: Moment) -> Moment:
    return one if one.fixed_bytes + one.token_bytes >= other.fixed_bytes + other.token_bytes else other
