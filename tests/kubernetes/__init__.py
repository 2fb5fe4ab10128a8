"""What holds of any API server: scenarios written once, run over the sandbox and over a real one."""
