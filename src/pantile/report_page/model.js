// Time and memory of the program in another configuration, from the units in the report.
//
//   predicted(report, {micro_batch, gradient_accumulation, replicas, recompute,
//                      sharded_optimizer_state, optimizer_state_off_chip})
//     ->  {verdict, fullest_tile, samples_per_second, seconds_per_update, bubble, stages: [...]}
//
// The same formulas as pantile/machine/timing.py, memory.py and communication.py; a browser test
// compares them. A changed micro-batch is scaled as pantile/machine/advice.py does: half the rows
// take more than half the time.

const COMFORTABLE = 0.9;
const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);
const most = (items, of) => items.reduce((largest, item) => Math.max(largest, of(item)), 0);

function constantsOf(report) {
  return Object.fromEntries(report.target.constants.map((one) => [one.name, one.value]));
}

function scaledUnit(unit, ratio) {
  if (ratio === 1) return unit;
  const effort = 0.15 + 0.85 * ratio;
  const part = (bytes) => Math.trunc(bytes * ratio);
  return {
    ...unit,
    forward_cycles: unit.forward_cycles * effort,
    backward_cycles: unit.backward_cycles * effort,
    inputs: part(unit.inputs),
    border: part(unit.border),
    saved: part(unit.saved),
    peak: part(unit.peak),
  };
}

function parametersOf(units) {
  const found = new Map();
  for (const unit of units) for (const one of unit.parameters) found.set(one.name, one);
  return [...found.values()];
}

function keeps(chosen, last) {
  return chosen.recompute === "none" || (chosen.recompute === "stage" && last);
}

function ringRate(c, replicas, ipus) {
  const inside = replicas * ipus <= c.ipus_per_machine;
  return (inside ? c.link_bytes_per_second : c.ring_bytes_per_second) * c.link_efficiency;
}

function allReduceSeconds(c, bytes, replicas, ipus, messages) {
  if (replicas <= 1) return 0;
  const inside = Math.max(1, Math.min(replicas, Math.floor(c.ipus_per_link_domain / ipus)));
  const domains = Math.ceil(replicas / inside);
  let seconds = ((2 * (inside - 1)) / inside) * (bytes / ringRate(c, replicas, ipus));
  const buffers = c.collective_buffer_bytes ? Math.ceil(bytes / c.collective_buffer_bytes) : Infinity;
  const hops = Math.log2(Math.max(2, replicas));
  seconds += Math.min(messages, buffers) * hops * c.collective_latency_seconds;
  if (domains > 1) {
    const wire = c.gateway_bytes_per_second * c.gateway_efficiency;
    seconds += (((2 * (domains - 1)) / domains) * bytes) / wire;
  }
  return seconds;
}

function onceSeconds(units, ipus, chosen, c) {
  const trained = parametersOf(units).filter((one) => one.trained);
  const elements = sum(trained, (one) => one.elements);
  const bytes = sum(trained, (one) => one.bytes);
  const shards = chosen.sharded_optimizer_state ? chosen.replicas : 1;
  const cost = chosen.optimizer_cost;
  const cycles =
    (elements / shards) * cost.cycles_per_weight + trained.length * cost.cycles_per_tensor;
  let update = cycles / c.clock_hz;
  if (chosen.optimizer_state_off_chip) {
    update += (2 * elements * cost.bytes_per_weight) / shards / c.streaming_bytes_per_second;
  }
  if (shards > 1) {
    const links = ringRate(c, chosen.replicas, ipus);
    update += (((chosen.replicas - 1) / chosen.replicas) * bytes) / links;
  }
  return [update, allReduceSeconds(c, bytes, chosen.replicas, ipus, trained.length)];
}

function stageSeconds(stages, index, chosen, c) {
  const units = stages[index];
  const last = index === stages.length - 1;
  const copied = (bytes) => bytes / (c.link_bytes_per_second * c.link_efficiency);
  const forward = sum(units, (unit) => unit.forward_cycles) / c.clock_hz;
  const inputs = sum(units, (unit) => unit.inputs);
  const host = chosen.overlapped_io ? 0 : inputs / c.streaming_bytes_per_second;
  let copies = index ? copied(stages[index - 1].at(-1).border) : 0;
  if (!chosen.training) {
    return {
      forward,
      backward: 0,
      recompute: 0,
      copies,
      host,
      update: 0,
      all_reduce: 0,
      micro_batch: forward + copies + host,
    };
  }
  let backward = sum(units, (unit) => unit.backward_cycles) / c.clock_hz;
  if (chosen.gradient_accumulation > 1)
    backward += sum(units, (unit) => unit.accumulate_cycles) / c.clock_hz;
  // Behind the last checkpoint of a pipeline nothing is computed again.
  const again = (unit) => !(last && index) || unit.group !== units.at(-1).group;
  const recompute = keeps(chosen, last)
    ? 0
    : sum(units.filter(again), (unit) => unit.forward_cycles) / c.clock_hz;
  copies += last ? 0 : copied(units.at(-1).border);
  const [update, all_reduce] = onceSeconds(units, stages.length, chosen, c);
  const micro_batch = forward + backward + recompute + copies + host;
  return { forward, backward, recompute, copies, host, update, all_reduce, micro_batch };
}

function timeOf(stages, chosen, c) {
  const times = stages.map((_, index) => stageSeconds(stages, index, chosen, c));
  const sharing = Math.max(1, Math.min(chosen.replicas, c.ipus_per_machine));
  const inputs = sum(stages.flat(), (unit) => unit.inputs);
  const rate = Math.min(
    c.host_bytes_per_second_per_ipu,
    c.host_bytes_per_second_per_machine / sharing,
  );
  const slowest = Math.max(inputs / rate, ...times.map((time) => time.micro_batch));
  const filling = stages.length - 1;
  const cycles = chosen.gradient_accumulation + (chosen.training ? 2 * filling : filling);
  const once = most(times, (time) => time.update) + most(times, (time) => time.all_reduce);
  const sync = filling ? c.global_sync_cycles / c.clock_hz : 0;
  const hosts = chosen.replicas * stages.length > c.ipus_per_host ? c.several_hosts_factor : 1;
  return { times, cycles, seconds: (cycles * (slowest + sync) + once) * hosts };
}

function stashOf(stages, index, chosen) {
  if (!chosen.training) return 0;
  const units = stages[index];
  const last = stages.length - 1;
  const waiting = 2 * (last - index) + 1;
  const arriving =
    (index ? stages[index - 1].at(-1).border : 0) + sum(units, (unit) => unit.inputs);
  if (keeps(chosen, index === last)) return waiting * (arriving + sum(units, (unit) => unit.saved));
  if (chosen.recompute === "stage") return waiting * arriving;
  const ends = units.slice(0, -1).filter((unit, place) => unit.group !== units[place + 1].group);
  return waiting * (arriving + sum(ends, (unit) => unit.border));
}

function liveOf(units, chosen, last) {
  const kind = chosen.training ? chosen.recompute : "none";
  const none = kind === "none" || (kind === "stage" && last);
  const key = (unit) => (kind === "layer" ? unit.group : "stage");
  const groups = new Map();
  for (const unit of units)
    groups.set(key(unit), (groups.get(key(unit)) || 0) + (none ? 0 : unit.saved));
  let best = [0, 0];
  for (const unit of units) {
    const others = Math.max(0, groups.get(key(unit)) - unit.saved);
    const found = [unit.peak + others, unit.temporary];
    if (found[0] + found[1] > best[0] + best[1]) best = found;
  }
  return best;
}

function stateBytes(trained, chosen) {
  const shards = chosen.sharded_optimizer_state ? chosen.replicas : 1;
  const elements = chosen.optimizer_state_off_chip
    ? most(trained, (one) => one.elements)
    : sum(trained, (one) => one.elements);
  return Math.floor((elements * chosen.optimizer_cost.bytes_per_weight) / shards);
}

function stageMemory(stages, index, chosen, c) {
  const units = stages[index];
  const weights = parametersOf(units);
  const trained = chosen.training ? weights.filter((one) => one.trained) : [];
  const accumulating = chosen.gradient_accumulation > 1;
  const width = chosen.accumulator_bytes;
  const sums = sum(trained, (one) => (width ? one.elements * width : one.bytes));
  const largest = most(
    trained.filter((one) => !one.lookup),
    (one) => one.bytes,
  );
  const [activations, temporary] = liveOf(units, chosen, index === stages.length - 1);
  const parts = {
    weights: sum(weights, (one) => one.bytes),
    buffers: sum(units, (unit) => unit.buffers),
    accumulators: accumulating ? sums : 0,
    gradients: accumulating ? largest : sum(trained, (one) => one.bytes),
    optimizer_state: stateBytes(trained, chosen),
    stash: stashOf(stages, index, chosen),
    activations,
    temporary,
  };
  const data = sum(Object.values(parts), (bytes) => bytes);
  const fixed =
    c.code_bytes_per_tile + c.exchange_code_bytes_per_tile + c.vertex_state_bytes_per_tile;
  const fullest = (data / c.tiles) * c.tile_imbalance + fixed;
  return {
    ...parts,
    total: data + fixed * c.tiles,
    fullest_tile: fullest / c.memory_bytes_per_tile,
  };
}

function predicted(report, changes) {
  const chosen = { ...report.configuration, ...changes };
  const c = constantsOf(report);
  const ratio = chosen.micro_batch / report.configuration.micro_batch;
  const stages = report.stages.map((stage) => stage.units.map((unit) => scaledUnit(unit, ratio)));
  const { times, cycles, seconds } = timeOf(stages, chosen, c);
  const memory = stages.map((_, index) => stageMemory(stages, index, chosen, c));
  const fullest = most(memory, (one) => one.fullest_tile);
  const samples = chosen.micro_batch * chosen.gradient_accumulation * chosen.replicas;
  const band = report.summary;
  const speed = seconds ? samples / seconds : 0;
  const share = (value) => (band.samples_per_second ? value / band.samples_per_second : 1);
  return {
    verdict: fullest > 1 ? "does not fit" : fullest > COMFORTABLE ? "borderline" : "fits",
    fullest_tile: fullest,
    samples_per_second: speed,
    samples_per_second_low: speed * share(band.samples_per_second_low),
    samples_per_second_high: speed * share(band.samples_per_second_high),
    seconds_per_update: seconds,
    bubble: cycles ? (2 * (stages.length - 1)) / cycles : 0,
    stages: times.map((time, index) => ({ ipu: index, seconds: time, memory: memory[index] })),
  };
}
