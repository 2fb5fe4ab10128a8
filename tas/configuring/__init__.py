"""How a kube-scheduler is configured to call extenders: texts in; texts, changes and notices out."""
