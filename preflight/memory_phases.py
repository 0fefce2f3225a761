"""Which tensors live at the same time? The moments of a step and of an evaluation that can be the peak, term by term.

GPT-2-sized models peak when the loss is differentiated (the logits), deep ones when the first layer's backward begins,
large ones with few tokens at the end of the backward pass, when all gradients are there.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight import memory_activations as activations
from preflight.memory_activations import LayerBytes
from preflight.memory_states import States, states_of
from preflight.memory_workload import Workload

TOKEN_BYTES = 8  # int64
N_BATCHES = 2  # the one in work and the one fetched for the next pass
NOTHING_SAVED = LayerBytes(0, 0, 0, 0)

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

    saved: LayerBytes = NOTHING_SAVED
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
    states = states_of(work)
    return Phases(
        n_params=states.n_params,
        weights=states.weights,
        optimizer_states=states.optimizer,
        inputs=2 * N_BATCHES * TOKEN_BYTES * work.n_tokens,
        moments={
            "forward": _forward(work, states),
            "loss_backward": _loss_backward(work, states),
            "head_backward": _head_backward(work, states),
            "layer_backward": _layer_backward(work, states),
            "backward_end": _backward_end(work, states),
            "optimizer_step": Moment(gradients=states.gradients),
            "evaluation": _evaluation(work, states),
            "checkpoint": Moment(gradients=_between_steps(work, states)),
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


def _forward(work: Workload, states: States) -> Moment:
    """The loss is there, and the final norm's output until the forward pass returns. Or: a block that is not kept."""
    loss = work.numerics.loss_forward_bytes_per_logit * work.n_logits
    norm_output = work.numerics.residual * work.model.n_embd * work.n_tokens if work.numerics.casts_weights else 0
    end = Moment(
        saved=activations.saved(work),
        gradients=states.kept_gradients,
        weight_casts=_all_casts(work, states),
        working_tensors=norm_output,
        logits_and_loss=loss,
    )
    if not work.recomputes_blocks:
        return end
    block = activations.no_grad_working_bytes(work) * work.n_tokens
    in_block = Moment(
        saved=activations.saved_inputs(work, work.model.n_layer),
        gradients=states.kept_gradients,
        weight_casts=_all_casts(work, states) - states.head_cast,
        working_tensors=block,
    )
    return max(end, in_block, key=_total)


def _loss_backward(work: Workload, states: States) -> Moment:
    """Everything is kept and the logits' gradient is being made."""
    return Moment(
        saved=activations.saved(work),
        gradients=states.kept_gradients,
        weight_casts=states.head_cast if work.recomputes_blocks else _all_casts(work, states),
        logits_and_loss=work.numerics.loss_backward_bytes_per_logit * work.n_logits,
    )


def _head_backward(work: Workload, states: States) -> Moment:
    """The head's two matmuls; or, where weights were cast, its gradient beside the copy in the weights' own type."""
    numerics, model = work.numerics, work.model
    casts = states.head_cast if work.recomputes_blocks else _all_casts(work, states)
    matmuls = Moment(
        saved=activations.saved(work),
        gradients=states.kept_gradients,
        gradients_in_flight=numerics.compute * model.vocab_size * model.n_embd,
        weight_casts=casts,
        working_tensors=numerics.compute * model.n_embd * work.n_tokens,
        logits_and_loss=numerics.compute * work.n_logits,
    )
    if not numerics.casts_weights:
        return matmuls
    cast_back = matmuls._replace(
        gradients_in_flight=matmuls.gradients_in_flight + states.head_gradient,
        weight_casts=casts - states.head_cast,
        logits_and_loss=0,
    )
    return max(matmuls, cast_back, key=_total)


def _layer_backward(work: Workload, states: States) -> Moment:
    """From the last layer to the first, activations go and gradients come, both evenly: an end is the peak."""
    n_layer = work.model.n_layer
    last, first = _backward_of_layer(work, states, n_layer), _backward_of_layer(work, states, 1)
    return max(last, first, key=_total)


def _backward_of_layer(work: Workload, states: States, n_left: int) -> Moment:
    """`n_left` layers' activations are left, the current one's included; it is recomputed first if it was not kept."""
    n_done = work.model.n_layer - n_left
    fresh = 0 if work.keeps_gradients else states.head_gradient + n_done * states.layer_gradient
    waiting = states.head_gradient if work.model.tied_head and work.keeps_gradients else 0
    return Moment(
        saved=activations.saved_with_one_whole(work, n_left),
        gradients=states.kept_gradients + fresh,
        gradients_in_flight=states.widest_matrix + waiting,
        weight_casts=states.layer_casts * (1 if work.recomputes_blocks else n_left),
        working_tensors=activations.backward_working_bytes(work) * work.n_tokens,
    )


def _backward_end(work: Workload, states: States) -> Moment:
    """The embeddings' gradients are made dense; a tied one is added to the head's, then to what is kept."""
    n_waiting, n_kept = int(work.model.tied_head), int(work.keeps_gradients)
    token = (n_waiting + n_kept) * states.head_gradient
    position = n_waiting * n_kept * states.head_gradient + (1 + n_kept) * states.position_gradient
    return Moment(
        gradients=states.gradients,
        gradients_in_flight=max(token, position),
        working_tensors=work.numerics.residual * work.model.n_embd * work.n_tokens,
    )


def _evaluation(work: Workload, states: States) -> Moment:
    """Nothing is kept for a backward pass: the widest block, or head and loss."""
    numerics, n_tokens = work.numerics, work.n_tokens
    block = activations.no_grad_working_bytes(work) * n_tokens
    norm_output = numerics.residual * work.model.n_embd * n_tokens
    loss = numerics.loss_forward_bytes_per_logit * work.n_logits
    at_loss = norm_output + loss > block
    return Moment(
        gradients=_between_steps(work, states),
        weight_casts=_all_casts(work, states),
        working_tensors=norm_output if at_loss else block,
        logits_and_loss=loss if at_loss else 0,
    )


def _all_casts(work: Workload, states: States) -> int:
    return work.model.n_layer * states.layer_casts + states.head_cast


def _between_steps(work: Workload, states: States) -> int:
    """Gradients are gone (set_to_none), DDP's buckets are not."""
    return states.gradients if work.has_buckets else 0


def _total(moment: Moment) -> int:
    return moment.fixed_bytes + moment.token_bytes
