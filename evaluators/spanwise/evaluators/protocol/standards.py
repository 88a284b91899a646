"""The compliance standards that evaluators speak to, in our reading: NIST's AI RMF and the Fed's SR 11-7."""

SAFE = "Safe (NIST AI RMF)"
SECURE = "Secure and Resilient (NIST AI RMF)"
PRIVACY = "Privacy Enhanced (NIST AI RMF)"
FAIR = "Fair (NIST AI RMF)"
TRANSPARENT = "Accountable and Transparent (NIST AI RMF)"
VALID = "Valid and Reliable (NIST AI RMF)"
SOUNDNESS = "Conceptual Soundness (SR 11-7)"
MONITORING = "Ongoing Monitoring (SR 11-7)"  # every evaluator that a monitor rule runs
OUTCOMES = "Outcomes Analysis (SR 11-7)"
