// The closed forms of ustat_pg.predictions for one kind of prompt: rewards 0 and 1, E‖s‖² = 1.
// Tests compare every value with the library's; no page, no browser needed here.
"use strict";
const closedForms = (() => {
  const range = (length, value) => Array.from({length}, (_, index) => value(index));
  const dot = (weights, values) => weights.reduce((sum, w, m) => sum + w * values[m], 0);

  // P(m), m = 0, ..., trials, one trial after the other: sums of positive numbers alone.
  const binomial = (trials, chance) => {
    let law = [1];
    for (let done = 1; done <= trials; done += 1) {
      const before = law;
      law = range(done + 1, (m) =>
        (m < done ? before[m] * (1 - chance) : 0) + (m > 0 ? before[m - 1] * chance : 0));
    }
    return law;
  };

  // Advantages by the number n of successes in the group: won[n] of a success, lost[n] of a failure.
  const leaveOneOut = (size, baseline) => ({
    won: range(size + 1, (n) => (n > 0 ? 1 - baseline(n - 1) : 0)),
    lost: range(size + 1, (n) => (n < size ? -baseline(n) : 0)),
  });
  const byCount = (size, won, lost) => ({won: range(size + 1, won), lost: range(size + 1, lost)});
  const divided = (size, divisor) => byCount(
    size,
    (n) => (n > 0 && n < size ? (1 - n / size) / divisor(n) : 0),
    (n) => (n > 0 && n < size ? -(n / size) / divisor(n) : 0),
  );
  const deviation = (n, size, ddof) => Math.sqrt((n * (size - n)) / (size * (size - ddof)));
  const othersStd = (size) => {
    const factor = (k) => {
      const share = k / (size - 1);
      const variance = share * (1 - share) * (size - 1) / Math.max(size - 2, 1);
      return k > 0 && k < size - 1 ? 1 / Math.sqrt(variance) : 1;
    };
    return {
      won: range(size + 1, (n) => (n > 0 ? (1 - (n - 1) / (size - 1)) * factor(n - 1) : 0)),
      lost: range(size + 1, (n) => (n < size ? -(n / (size - 1)) * factor(n) : 0)),
    };
  };
  // The chance that k of `among` outputs, m of them right, are all wrong.
  const allWrong = (m, k, among) =>
    range(k, (j) => Math.max(among - m - j, 0) / (among - j)).reduce((a, b) => a * b, 1);
  const passAtTwo = (size) => byCount(
    size,
    (n) => (n > 0 ? 2 * allWrong(n - 1, Math.min(2, size - 1), size - 1) : 0),
    (n) => (n < size
      ? 2 * (allWrong(n, Math.min(2, size - 1), size - 1) - allWrong(n, 1, size - 1)) : 0),
  );
  const tables = {
    "grpo": (size) => leaveOneOut(size, (k) => k / (size - 1)),
    "group-mean": (size) => byCount(size, (n) => 1 - n / size, (n) => -n / size),
    "std": (size) => divided(size, (n) => deviation(n, size, 0)),
    "std-ddof1": (size) => divided(size, (n) => deviation(n, size, 1)),
    "others-std": othersStd,
    "maxrl": (size) => byCount(size, (n) => size / Math.max(n, 1) - 1, (n) => (n > 0 ? -1 : 0)),
    "pass-at-k:2": passAtTwo,
    "bayes:1,1": (size) => leaveOneOut(size, (k) => (k + 1) / (size + 1)),
    "shrinkage:0.5,0.5": (size) => leaveOneOut(size, (k) => 0.5 * k / (size - 1) + 0.25),
    "vanilla": (size) => leaveOneOut(size, () => 0),
  };
  // Baselines that know the prompt, from its moments.
  const known = {"oracle": (m) => m.value, "minimum-variance": (m) => m.value + m.normAdvantage};

  // The moments of prompts of one pass rate p. The squared norm of a score has mean 1 and standard
  // deviation `spread`, and `correlation` with the reward: no further than norms stay positive. The
  // squared gradient is the share `signal` of the largest that such scores allow; the gradients of two
  // prompts have the cosine `agreement`.
  const momentsOf = ({p, spread, correlation, signal, agreement}) => {
    const q = 1 - p;
    const wanted = correlation * spread * Math.sqrt(p * q);
    const normAdvantage = Math.min(Math.max(wanted, -p), q);
    const gradientSq = signal * Math.min(p * (p + normAdvantage), q * (q - normAdvantage));
    return {
      value: p,
      rewardVariance: p * q,
      normAdvantage,
      normSquaredAdvantage: q * q * (p + normAdvantage) + p * p * (q - normAdvantage),
      gradientSq,
      meanGradientSq: agreement * gradientSq,
      limited: Math.abs(wanted - normAdvantage) > 1e-12,
    };
  };

  const weight = (name, size, p) => {
    if (name in known) return 1;
    const {won, lost} = tables[name](size);
    return dot(binomial(size - 1, p), range(size, (m) => won[m + 1] - lost[m]));
  };

  // E‖ĝ‖² of the group of one prompt.
  const secondMoment = (name, size, moments) => {
    const {value: p, normAdvantage, gradientSq} = moments;
    if (name in known) {
      const shift = known[name](moments) - p;
      const single = moments.normSquaredAdvantage - 2 * shift * normAdvantage + shift * shift;
      return gradientSq + (single - gradientSq) / size;
    }
    const {won, lost} = tables[name](size);
    const alone = binomial(size - 1, p);
    const right = dot(alone, range(size, (m) => won[m + 1] ** 2)) * (p + normAdvantage);
    const wrong = dot(alone, range(size, (m) => lost[m] ** 2)) * (1 - p - normAdvantage);
    const pairs = range(size - 1, (l) =>
      won[l + 2] ** 2 - 2 * won[l + 1] * lost[l + 1] + lost[l] ** 2);
    const both = dot(binomial(size - 2, p), pairs) * (size - 1) * gradientSq;
    return (right + wrong + both) / size;
  };

  // One prompt and its group: the mean factor w, the variance and the MSE about the gradient of J.
  const evaluate = (name, size, setting) => {
    const moments = momentsOf(setting);
    const w = weight(name, size, moments.value);
    const variance =
      Math.max(secondMoment(name, size, moments) - w * w * moments.meanGradientSq, 0);
    const bias = (w - 1) ** 2 * moments.meanGradientSq;
    return {
      weight: w,
      variance,
      mse: variance + bias,
      // So that no learning rate helps: at one output a step, G of them cost G times as much.
      noise: size * variance / (w * w),
      silent: moments.value ** size + (1 - moments.value) ** size,
    };
  };

  // The group size of least noise at a budget, and those within 5% of it.
  const bestGroup = (name, sizes, setting) => {
    const noises = sizes.map((size) => evaluate(name, size, setting).noise);
    const least = Math.min(...noises);
    // Of equals the least: a noise that does not depend on G is level but for rounding.
    const index = noises.findIndex((noise) => noise <= least * (1 + 1e-12));
    const near = sizes.filter((_, place) => noises[place] <= 1.05 * least);
    return {best: sizes[index], least, near: [near[0], near[near.length - 1]], noises};
  };

  // 1 + √(c3/c1) of the leave-one-out mean (Theorem 7); Infinity where all prompts pull alike.
  const bestReal = (setting) => {
    const moments = momentsOf(setting);
    const c1 = moments.gradientSq - moments.meanGradientSq;
    return 1 + Math.sqrt((moments.rewardVariance + moments.gradientSq) / c1);
  };

  return {names: [...Object.keys(tables), ...Object.keys(known)], momentsOf, weight, evaluate,
    bestGroup, bestReal};
})();
