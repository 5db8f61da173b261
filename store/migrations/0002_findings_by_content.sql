-- Several partitions may raise a finding under one id, when its subject spans them: an operation over several homes, a
-- namespace, a fact. Each numbers its own revisions, and two of one number are two rows that must not collapse into
-- whichever came last. What is current among them is a query: the highest revision, then the earliest event, then the
-- least text.

-- statement: findings_content
-- A hash of the revision as published: the same revision written again collapses, another one does not.
ALTER TABLE ${database}.findings ADD COLUMN IF NOT EXISTS content UInt64, MODIFY ORDER BY (id, revision, content)
