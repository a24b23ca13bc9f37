// One training step of a multilayer perceptron as a graph for remat:  node export.mjs > mlp.json
const batch = 4096, widths = [784, 512, 512, 512, 10], bytesPerNumber = 4;
const last = widths.length - 1;
const bytes = (width) => batch * width * bytesPerNumber;
const nodes = [];

// Forward. Every node names the values it reads; what is not made by a node (input, weights) is fixed memory.
let fixed = bytes(widths[0]);
for (let k = 1; k <= last; k++) {
  const weights = widths[k - 1] * widths[k];
  fixed += 2 * weights * bytesPerNumber; // the weights and their gradients
  nodes.push({ id: `linear${k}`, op: "matmul", phase: "forward", inputs: k > 1 ? [`relu${k - 1}`] : [],
               cost: 2 * batch * weights, memory: bytes(widths[k]) });
  if (k < last) {
    nodes.push({ id: `relu${k}`, op: "relu", phase: "forward", inputs: [`linear${k}`],
                 cost: batch * widths[k], memory: bytes(widths[k]) });
  }
}

// The loss has two outputs: its value, loss:0, and the gradient that the backward part begins with, loss:1.
nodes.push({ id: "loss", phase: "loss", inputs: [`linear${last}`],
             cost: 4 * batch * widths[last], outputs: [bytesPerNumber, bytes(widths[last])] });

// Backward. A node reads the gradient from above, and what its derivative needs of the forward part.
for (let k = last; k >= 1; k--) {
  if (k < last) {
    nodes.push({ id: `grad/relu${k}`, phase: "backward", inputs: [`grad/linear${k + 1}`, `relu${k}`],
                 cost: batch * widths[k], memory: bytes(widths[k]) });
  }
  const above = k < last ? `grad/relu${k}` : "loss:1";
  nodes.push({ id: `grad/linear${k}`, phase: "backward", inputs: k > 1 ? [above, `relu${k - 1}`] : [above],
               cost: (k > 1 ? 4 : 2) * batch * widths[k - 1] * widths[k],
               outputs: k > 1 ? [bytes(widths[k - 1])] : [] }); // gradients of weights are fixed memory
}

console.log(JSON.stringify({ schema: "remat-graph/1", name: "mlp", cost_unit: "flops", fixed_memory: fixed,
                             nodes, outputs: ["loss:0"] }));
