"""The worker that labels the pods that are to leave a GPU card."""
