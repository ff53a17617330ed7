"""The part of the dashboard's script that is the first screen: now, vital signs, findings, curves; see `page`."""

from __future__ import annotations

OVERVIEW = r"""
  // Where the time of a step goes, in the order in which it happens. The last two fall between steps.
  const PHASES = [["sample", 0], ["score", 3], ["logprobs", 4], ["update", 1], ["tokens", 7], ["other", 6], ["eval", 2],
    ["checkpoint", 5]];
  const showHead = () => {
    const run = runOf(state.run);
    byId("head").hidden = !run;
    if (!run) return;
    setText(byId("run-title"), visible(nameOf(run.id)));
    byId("run-dot").className = "dot " + run.state;
    setText(byId("run-state"), STATES[run.state] || run.state);
    const facts = [run.task, run.model, run.stages.map((stage) => stage.name).join(" → "), run.reason];
    setText(byId("run-facts"), visible(facts.filter(Boolean).join(" · ")));
  };

  const tile = (value, words, title) => {
    const element = make("div", "tile");
    element.append(make("b", "", value), make("span", "", words));
    if (title) element.title = title;
    return element;
  };
  const showNow = () => {
    showHead();
    const run = runOf(state.run);
    if (!run || state.view !== "overview") return;
    const data = dataOf(run.id);
    const tiles = [tile(run.planned_steps ? `${plain(run.step)} / ${plain(run.planned_steps)}` : plain(run.step),
      run.stage ? `step, in ${visible(run.stage)}` : "step")];
    const spent = run.phase ? run.phase.seconds : {};
    tiles.push(tile(seconds(spent.step ?? run.step_s), "newest step"));
    const speed = lastOf(data, "engine/tokens_per_s");
    tiles.push(tile(speed === null ? "–" : plain(speed), "tokens/s", meaningOf("engine/tokens_per_s")));
    tiles.push(tile(seconds(run.last_write_s), "since the last write"));
    if (run.state === "running" && run.left_s !== null) tiles.push(tile(seconds(run.left_s), "left, at this pace"));
    if (run.last_eval) {
      tiles.push(tile(percent(run.last_eval.pass_at_1), "held-out, "
        + `${interval(run.last_eval.low, run.last_eval.high, "share")} (step ${plain(run.last_eval.step)})`,
        meaningOf("eval/pass_at_1")));
    }
    byId("tiles").replaceChildren(...tiles);
    showPhases(run, spent);
  };
  const showPhases = (run, spent) => {
    const parts = ["sample", "score", "logprobs", "update", "tokens"];
    const inside = parts.reduce((sum, name) => sum + (spent[name] || 0), 0);
    const all = { ...spent, other: Math.max(0, (spent.step || 0) - inside) };
    const shown = PHASES.filter(([name]) => all[name] > 0);
    const total = shown.reduce((sum, [name]) => sum + all[name], 0);
    byId("phases").replaceChildren(...shown.map(([name, slot]) => {
      const part = paint(make("div"), colourOf(slot));
      part.style.flexGrow = all[name] / total;
      part.title = `${name}: ${seconds(all[name])}, ${percent(all[name] / total)}. ${meaningOf(`time/${name}_s`)}`;
      return part;
    }));
    byId("phases").setAttribute("aria-label", "The newest step: " + shown.map(([name]) =>
      `${name} ${seconds(all[name])}`).join(", "));
    byId("phase-legend").replaceChildren(...shown.map(([name, slot]) => {
      const entry = make("span");
      entry.append(paint(make("i", "swatch"), colourOf(slot)), `${name} ${seconds(all[name])}`);
      return entry;
    }));
    const isWaiting = run.state === "running" && run.phase;
    setText(byId("now-sentence"), !run.phase ? "No step is recorded yet." : isWaiting
      ? `Step ${plain(run.phase.step + 1)} has been under way for ${seconds(run.phase.ago_s)}`
        + (run.step_s ? `; steps usually take ${seconds(run.step_s)}.` : ".")
      : `The newest step was written ${seconds(run.phase.ago_s)} ago.`);
  };
  const meaningOf = (name) => {
    const family = Object.keys(catalogue).find((other) => other.endsWith("/") && name.startsWith(other));
    const entry = catalogue[name] || catalogue[family];
    return entry ? entry.meaning : "";
  };
  const unitOf = (name) => (catalogue[name] ? catalogue[name].unit : "");

  const showFindings = () => {
    const found = known.has(state.run) ? known.get(state.run).findings : null;
    const stages = found ? found.stages.filter((stage) => stage.vital_signs.length) : [];
    const stage = stages.at(-1);
    setText(byId("signs-title"), stage && stage.is_loss_zero ? "The loss is 0. Is it training?" : "Is it training?");
    const signs = byId("signs");
    if (stage) {
      const list = make("ul", "signs");
      list.append(...stage.vital_signs.map((line) => make("li", "", visible(line))));
      const place = make("p", "stage-name", `stage ${visible(stage.name)}, steps ${plain(stage.first_step)} to `
        + plain(stage.last_step));
      signs.replaceChildren(list, place);
    } else {
      const isLearning = found && found.stages.length;
      signs.replaceChildren(make("p", "dim", !found ? "Reading the run …" : isLearning
        ? "This stage has no rewards yet: its loss is a likelihood, and it should fall. See sft/loss below."
        : "No step is recorded yet: there is nothing to examine."));
    }
    const place = byId("findings");
    if (!found) { place.replaceChildren(make("p", "dim", "Reading the run …")); return; }
    if (found.error) { place.replaceChildren(make("p", "dim", visible(found.error))); return; }
    setText(byId("findings-step"), `as of step ${plain(found.as_of_step)}`);
    if (!found.findings.length) {
      place.replaceChildren(make("p", "dim", found.stages.length ? "Nothing is wrong as far as the doctor can see."
        : "Nothing to examine yet."));
      return;
    }
    place.replaceChildren(...found.findings.map(findingOf));
  };
  const findingOf = (finding) => {
    const element = make("article", "finding " + finding.severity);
    const title = make("h3");
    title.append(make("span", "badge " + finding.severity, finding.severity), make("span", "", visible(finding.title)),
      make("span", "dim", `stage ${visible(finding.stage)}, steps ${plain(finding.first_step)} to `
        + plain(finding.last_step)));
    element.append(title, make("p", "", visible(finding.seen)), make("p", "dim", visible(finding.means)));
    const { advice, key, value } = finding.change;
    element.append(make("p", "", visible(advice)));
    if (key) {
      const line = `${visible(key)} = ${visible(JSON.stringify(value))}`;
      const place = make("div", "change");
      const copy = button("Copy", async () => {
        await navigator.clipboard.writeText(line);
        copy.textContent = "Copied";
      });
      copy.setAttribute("aria-label", "Copy " + line);
      place.append(make("code", "", line), copy);
      element.append(place);
    }
    return element;
  };

  // The curves, in the order in which one looks at them.
  const PANELS = [
    { name: "held_out", title: "Held-out pass@1", metric: "eval/pass_at_1", kind: "points", isEval: true,
      isAlways: "No held-out evaluation yet." },
    { name: "reward", title: "Reward", metrics: ["reward/mean"], isAlways: "No step with a reward yet." },
    { name: "sft", title: "SFT loss", metrics: ["sft/loss"] },
    { name: "kl", title: "KL from the reference", metrics: ["kl/ref_k3"], mayBeLog: true },
    { name: "step_kl", title: "KL of the step", metrics: ["policy/approx_kl"], mayBeLog: true },
    { name: "clip", title: "Clipped tokens", metrics: ["policy/clip_share"] },
    { name: "entropy", title: "Entropy", metrics: ["policy/entropy_nats"] },
    { name: "grad_norm", title: "Gradient norm", metrics: ["policy/grad_norm"], mayBeLog: true },
    { name: "length", title: "Completion length", words: ["mean", "longest"],
      metrics: ["rollouts/length_mean_tokens", "rollouts/length_max_tokens"] },
    { name: "dead_groups", title: "Groups without signal", unit: "share",
      metrics: ["groups/dead_all_wrong", "groups/dead_all_correct"], per: "groups/count", isSum: true,
      words: ["all wrong", "all correct"],
      why: "Share of the step's groups whose rewards are alike: they teach nothing" },
    { name: "time", title: "Where the time goes", kind: "stack", unit: "s", metrics: ["time/sample_s", "time/score_s",
      "time/logprobs_s", "time/update_s", "time/tokens_s", "time/eval_s", "time/checkpoint_s"] },
    { name: "speed", title: "Sampling speed", metrics: ["engine/tokens_per_s"] },
    { name: "memory", title: "Peak memory", metrics: ["memory/peak_bytes"] },
  ];
  const panelOf = (table) => {
    const panel = { ...table, unit: table.unit ?? unitOf(table.metric || table.metrics[0]) };
    panel.why = table.why ?? (table.kind === "stack" ? "Seconds of each step, of the run in front"
      : meaningOf(table.metric || table.metrics[0]));
    panel.lines = () => (panel.isEval ? evalLines(panel) : panel.kind === "stack" ? stackLines(panel)
      : metricLines(panel));
    return panel;
  };
  // One run: a line for each metric of the panel. Several: one line each, in its colour; past the last colour, dashed.
  const lookOf = (id, number, words) => {
    const isAlone = chosenRuns().length === 1;
    const slot = slots.get(id) + (isAlone ? number : 0);
    return { name: isAlone ? words : nameOf(id), dash: Math.floor(slot / NUM_COLOURS), colour: colourOf(slot) };
  };
  const metricLines = (panel) => chosenRuns().flatMap((id) => {
    const data = dataOf(id);
    const isAlone = chosenRuns().length === 1;
    const columns = panel.metrics.map((metric) => columnOf(data, metric))
      .map((column) => (column && lastKnown(column) >= 0 ? column : null));
    const counts = panel.per ? columnOf(data, panel.per) : null;
    const part = (column) => (panel.per ? column.map((value, index) =>
      (counts && counts[index] && isNumber(value) ? value / counts[index] : null)) : column);
    const line = (column, number) => ({ ...lookOf(id, number, panel.words ? panel.words[number] : ""), x: data.steps,
      y: part(column) });
    const found = columns.map((column, number) => [column, number]).filter(([column]) => column);
    if (isAlone || !found.length) return found.map(([column, number]) => line(column, number));
    if (!panel.isSum) return found.slice(0, 1).map(([column]) => line(column, 0));
    return [line(found[0][0].map((value, index) => (isNumber(value)
      ? found.reduce((sum, [column]) => sum + (column[index] || 0), 0) : null)), 0)];
  });
  const evalLines = (panel) => chosenRuns().flatMap((id) => {
    const { evals } = dataOf(id);
    const field = panel.metric.slice("eval/".length);
    if (!evals.length) return [];
    const line = { ...lookOf(id, 0, ""), x: evals.map((entry) => entry.step), y: evals.map((entry) => entry[field]) };
    if (field === "pass_at_1") {
      line.low = evals.map((entry) => entry.low);
      line.high = evals.map((entry) => entry.high);
    }
    return [line];
  });
  const stackLines = (panel) => {
    const data = dataOf(state.run);
    return panel.metrics.flatMap((metric) => {
      const column = columnOf(data, metric);
      const name = metric.slice("time/".length, -"_s".length);
      if (!column || !column.some((value) => value > 0)) return [];
      const colour = colourOf(PHASES.find(([phase]) => phase === name)[1]);
      return [{ name, dash: 0, colour, x: data.steps, y: column }];
    });
  };

  let charts = [];
  let isBuilt = false;
  const shownCharts = () => charts;
  // Only what can be seen is drawn; the rest is drawn when it comes into view.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((other) => other.figure === entry.target);
      if (!chart) continue;
      chart.isSeen = entry.isIntersecting;
    }
    drawStale();
  }, { rootMargin: "200px" });
  // A few milliseconds of drawing a frame, so that many long runs do not hold up a scroll or a slider.
  const FRAME_MS = 10;
  let isDrawing = false;
  const drawStale = () => {
    const wanted = charts.filter((chart) => chart.isSeen && chart.isStale && !chart.figure.hidden);
    if (isDrawing || !wanted.length || state.view !== "overview") return;
    isDrawing = true;
    requestAnimationFrame(() => {
      const begin = performance.now();
      for (const chart of wanted) {
        if (chart.isStale) redraw(chart);
        if (performance.now() - begin > FRAME_MS) break;
      }
      isDrawing = false;
      drawStale();
    });
  };
  const buildCharts = () => {
    watcher.disconnect();
    const wanted = [...PANELS, ...state.more.map((metric) => {
      const isEval = metric.startsWith("eval/");
      return { name: "more-" + metric, title: metric, isAdded: true, metric, metrics: [metric], isEval,
        kind: isEval ? "points" : undefined, isAlways: "No chosen run has recorded this." };
    })];
    charts = wanted.map((table) => chartOf(panelOf(table)));
    for (const chart of charts) {
      if (!chart.panel.isAdded) continue;
      const drop = button("✕", () => {
        change({ more: state.more.filter((metric) => metric !== chart.panel.metric) });
        buildCharts();
        showCharts();
      });
      drop.setAttribute("aria-label", "Remove " + visible(chart.panel.title));
      chart.caption.append(drop);
    }
    byId("charts").replaceChildren(...charts.map((chart) => chart.figure));
    for (const chart of charts) watcher.observe(chart.figure);
    isBuilt = true;
  };
  const showCharts = () => {
    if (state.view !== "overview") { for (const chart of charts) chart.isStale = true; return; }
    if (!isBuilt) buildCharts();
    for (const chart of charts) {
      chart.isStale = true;
      // A chart without lines is hidden, and what is hidden is never seen.
      const isHidden = chart.panel.lines().length === 0 && !chart.panel.isAlways;
      if (chart.figure.hidden !== isHidden) chart.figure.hidden = isHidden;
    }
    drawStale();
    const names = new Set(Object.keys(catalogue).filter((name) => !name.endsWith("/")));
    for (const id of chosenRuns()) for (const name of dataOf(id).columns.keys()) names.add(name);
    const list = byId("metric-names");
    if (list.children.length !== names.size) {
      list.replaceChildren(...[...names].map((name) => {
        const option = make("option", "", visible(meaningOf(name)));
        option.value = name;
        return option;
      }));
    }
  };

  const smooth = byId("smooth");
  const showTools = () => {
    smooth.value = state.smooth;
    byId("smooth-value").textContent = state.smooth === "0" ? "off" : state.smooth;
    byId("log").setAttribute("aria-pressed", String(state.log === "1"));
  };
  smooth.addEventListener("input", () => {
    change({ smooth: String(Number(smooth.value)) });
    showTools();
    showCharts();
  });
  byId("log").addEventListener("click", () => {
    change({ log: state.log === "1" ? "" : "1" });
    showTools();
    showCharts();
  });
  const picker = byId("metric");
  const addMetric = () => {
    const name = picker.value.trim();
    const isKnown = [...byId("metric-names").children].some((option) => option.value === name);
    if (!isKnown) { picker.setCustomValidity(name ? "No such metric: choose one of the list." : ""); return; }
    picker.setCustomValidity("");
    picker.value = "";
    if (state.more.includes(name)) return;
    change({ more: [...state.more, name] });
    buildCharts();
    showCharts();
    charts.at(-1).figure.scrollIntoView({ block: "nearest" });
  };
  picker.addEventListener("input", () => picker.setCustomValidity(""));
  picker.addEventListener("change", () => { addMetric(); picker.reportValidity(); });
  let drawnWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === drawnWidth) return;
    drawnWidth = innerWidth;
    showCharts();
  });
"""
