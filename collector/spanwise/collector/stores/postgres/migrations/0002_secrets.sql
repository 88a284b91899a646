-- Secrets that all collectors share: they sign browser sessions and forms

CREATE TABLE secrets (name TEXT COLLATE "C" PRIMARY KEY, value BYTEA NOT NULL);
