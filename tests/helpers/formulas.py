"""The formulas of papers, written down term by term."""

import numpy as np

from impala_tf.types import EnvOutput


def paper_vs(log_rhos, discounts, rewards, values, bootstrap, rho_bar, c_bar, lambda_):
    """Equation (1) of arXiv 1802.01561: v_s = V(x_s) + sum_t gamma^(t-s) (prod c_i) delta_t V."""
    T, B = log_rhos.shape
    next_values = np.concatenate([values[1:], bootstrap[None]])
    vs = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            total = values[s, b]
            for t in range(s, T):
                discount = np.prod([discounts[i, b] for i in range(s, t)])
                trace = np.prod([lambda_ * min(c_bar, np.exp(log_rhos[i, b])) for i in range(s, t)])
                rho = min(rho_bar, np.exp(log_rhos[t, b]))
                delta = rho * (rewards[t, b] + discounts[t, b] * next_values[t, b] - values[t, b])
                total += discount * trace * delta
            vs[s, b] = total
    return vs


def paper_advantages(log_rhos, discounts, rewards, values, bootstrap, vs, pg_rho_bar):
    """Section 4.2 of arXiv 1802.01561: rho_s (r_s + gamma v_{s+1} - V(x_s))."""
    next_vs = np.concatenate([vs[1:], bootstrap[None]])
    return np.minimum(pg_rho_bar, np.exp(log_rhos)) * (rewards + discounts * next_vs - values)


def n_step_return(
    unroll: EnvOutput, env: int, t: int, n: int, gamma: float
) -> tuple[float, float, int] | None:
    """Adds up the rewards of decision t one by one; None if it was no decision."""
    if unroll.autoreset[env, t + 1]:
        return None
    total, discount = 0.0, 1.0
    for now in range(t + 1, len(unroll.reward[env])):
        if unroll.autoreset[env, now]:  # the environment was restarted in the middle of an episode
            return total, discount, now - 1
        total += discount * float(unroll.reward[env, now])
        discount *= gamma
        if unroll.terminated[env, now]:
            return total, 0.0, now
        if unroll.truncated[env, now] or now == t + n:
            return total, discount, now
    return total, discount, now
