"""V-trace off-policy corrections (Espeholt et al., 2018, arXiv 1802.01561, section 4.1).

Pure functions on time-major tensors [T, B]. Index t is the transition from x_t to x_{t+1}:
`rewards[t]` and `discounts[t]` belong to `actions[t]`; `values[t]` is V(x_t); `bootstrap_value` is
V(x_T). Where `mask[t]` is False, no transition happened (an environment reset): the correction is
0, so `vs[t] = values[t]`, and later corrections do not reach earlier steps.
"""

from __future__ import annotations

from impala_tf.lazy import tf

RHO_BAR, C_BAR = 1.0, 1.0
"""Thresholds of the importance weights in all experiments of the paper."""

_MAX_LOG_RHO = 20.0


def from_importance_weights(
    log_rhos: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    mask: tf.Tensor,
    lambda_: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns V-trace targets from the log importance weights. Gradients do not flow through them.

    Args:
      log_rhos: float32 [T, B], log pi(a|x) - log mu(a|x).
      discounts: float32 [T, B], gamma, or 0 where the episode terminated.
      rewards: float32 [T, B].
      values: float32 [T, B].
      bootstrap_value: float32 [B].
      mask: bool [T, B], False where no transition happened.
      lambda_: factor of the c_i (remark 2).

    Returns:
      (vs, the value targets v_s of equation (1);
      pg_advantages, rho_s (r_s + gamma v_{s+1} - V(x_s)), section 4.2;
      the rho_s in pg_advantages, 0 where mask is False); float32 [T, B] each.
    """
    valid = tf.cast(mask, log_rhos.dtype)
    # Densities of continuous actions may differ so much that their ratio is not finite.
    ratios = tf.exp(tf.minimum(log_rhos, _MAX_LOG_RHO)) * valid
    rhos = tf.minimum(ratios, RHO_BAR)
    cs = lambda_ * tf.minimum(ratios, C_BAR)

    values_t_plus_1 = tf.concat([values[1:], bootstrap_value[None]], axis=0)
    deltas = rhos * (rewards + discounts * values_t_plus_1 - values)
    vs = values + discounted_sums(deltas, discounts * cs)

    # The paper has lambda 1. With less, GAE(lambda) on policy would need lambda v_{s+1} +
    # (1 - lambda) V(x_{s+1}) here, as rlax has it. The defaults were tuned with v_{s+1}; at their
    # 0.95, it correlates with GAE by 0.9996 (at 0.8, by 0.989; standard normal rewards and values).
    vs_t_plus_1 = tf.concat([vs[1:], bootstrap_value[None]], axis=0)
    pg_advantages = rhos * (rewards + discounts * vs_t_plus_1 - values)
    return tf.stop_gradient(vs), tf.stop_gradient(pg_advantages), tf.stop_gradient(rhos)


def discounted_sums(deltas: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Returns y with y_t = deltas_t + factors_t y_{t+1}, y_T = 0 (remark 1); all [T, B].

    T must be known when the graph is built: the loop is unrolled, because T is small and a graph
    loop costs more than its body.
    """
    total = tf.zeros_like(deltas[0])
    totals = []
    for delta, factor in zip(
        reversed(tf.unstack(deltas)), reversed(tf.unstack(factors)), strict=True
    ):
        total = delta + factor * total
        totals.append(total)
    return tf.stack(totals[::-1])
