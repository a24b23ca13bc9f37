"""ONNX models (https://onnx.ai) to graphs: shapes by the ``onnx`` package, costs by formulas of our own."""
