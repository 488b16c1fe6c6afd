CREATE TABLE "audit" (
	id INTEGER NOT NULL,
	who TEXT NOT NULL,
	how TEXT NOT NULL,
	address TEXT NOT NULL,
	action TEXT NOT NULL,
	subject TEXT NOT NULL,
	allowed BOOLEAN NOT NULL,
	detail TEXT NOT NULL,
	at DATETIME NOT NULL,
	CONSTRAINT ck_audit_action CHECK ("action" IN ('sign', 'revoke', 'comment', 'acknowledge', 'release', 'accept', 'login', 'logout', 'request')),
	CONSTRAINT pk_audit PRIMARY KEY (id)
);

CREATE TABLE baselines (
	id INTEGER NOT NULL,
	matrix TEXT NOT NULL,
	variant TEXT NOT NULL,
	run_id TEXT NOT NULL,
	accepted_by TEXT NOT NULL,
	reason TEXT NOT NULL,
	accepted_at DATETIME NOT NULL, waivers TEXT, name TEXT DEFAULT '' NOT NULL, how TEXT DEFAULT '' NOT NULL,
	CONSTRAINT fk_baselines_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_baselines PRIMARY KEY (id)
);

CREATE TABLE "cases" (
	"key" INTEGER NOT NULL,
	run_id TEXT NOT NULL,
	position BIGINT NOT NULL,
	case_id TEXT NOT NULL,
	model TEXT NOT NULL,
	phase TEXT NOT NULL,
	shape TEXT NOT NULL,
	dtype TEXT NOT NULL,
	mask TEXT NOT NULL,
	kernel TEXT NOT NULL,
	layers BIGINT NOT NULL,
	line BIGINT NOT NULL,
	content_hash TEXT NOT NULL,
	unclaimed TEXT NOT NULL,
	heads_q BIGINT NOT NULL,
	heads_kv BIGINT NOT NULL,
	head_dim BIGINT NOT NULL,
	head_dim_v BIGINT NOT NULL,
	workload_dtype TEXT NOT NULL,
	causal BOOLEAN NOT NULL,
	window_left BIGINT NOT NULL,
	window_right BIGINT NOT NULL,
	softcap DOUBLE NOT NULL,
	sinks BOOLEAN NOT NULL,
	scale DOUBLE NOT NULL,
	seqlens_q TEXT NOT NULL,
	seqlens_k TEXT NOT NULL,
	page_size BIGINT NOT NULL,
	descale TEXT DEFAULT ('') NOT NULL,
	pattern_size BIGINT DEFAULT '0' NOT NULL,
	spans TEXT DEFAULT '[]' NOT NULL, latent BOOLEAN DEFAULT 0 NOT NULL, pattern TEXT DEFAULT '' NOT NULL,
	CONSTRAINT ck_cases_dtype CHECK ("dtype" IN ('bf16', 'fp16', 'fp32', 'fp8_e4m3', 'bf16_kv_fp8_e4m3', 'fp16_kv_fp8_e4m3')),
	CONSTRAINT ck_cases_phase CHECK ("phase" IN ('prefill', 'chunked', 'varlen', 'decode', 'verify')),
	CONSTRAINT ck_cases_workload_dtype CHECK ("workload_dtype" IN ('bf16', 'fp16', 'fp32', 'fp8_e4m3', 'bf16_kv_fp8_e4m3', 'fp16_kv_fp8_e4m3')),
	CONSTRAINT fk_cases_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_cases PRIMARY KEY ("key"),
	CONSTRAINT uq_cases_run_id_case_id UNIQUE (run_id, case_id),
	CONSTRAINT uq_cases_run_id_position UNIQUE (run_id, position)
);

CREATE TABLE ceilings (
	run_id TEXT NOT NULL,
	copy_bytes_per_s DOUBLE NOT NULL,
	exps_per_s DOUBLE NOT NULL,
	launch_us DOUBLE NOT NULL,
	CONSTRAINT fk_ceilings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_ceilings PRIMARY KEY (run_id)
);

CREATE TABLE comments (
	id INTEGER NOT NULL,
	run_id TEXT,
	case_id TEXT NOT NULL,
	"by" TEXT NOT NULL,
	text TEXT NOT NULL,
	at DATETIME NOT NULL, origin TEXT DEFAULT '' NOT NULL,
	CONSTRAINT fk_comments_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_comments PRIMARY KEY (id)
);

CREATE TABLE "components" (
	stack_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	version TEXT NOT NULL,
	digest TEXT NOT NULL,
	CONSTRAINT ck_components_kind CHECK ("kind" IN ('driver', 'runtime', 'distribution', 'binary', 'firmware', 'system', 'setting', 'code')),
	CONSTRAINT fk_components_stack_id_stacks FOREIGN KEY(stack_id) REFERENCES stacks (id),
	CONSTRAINT pk_components PRIMARY KEY (stack_id, position)
);

CREATE TABLE correct_kernels (
	selftest_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	name TEXT NOT NULL,
	does TEXT NOT NULL,
	runs BIGINT NOT NULL,
	alarms TEXT NOT NULL,
	CONSTRAINT fk_correct_kernels_selftest_id_selftests FOREIGN KEY(selftest_id) REFERENCES selftests (id),
	CONSTRAINT pk_correct_kernels PRIMARY KEY (selftest_id, position)
);

CREATE TABLE deletions (
	id INTEGER NOT NULL,
	what TEXT NOT NULL,
	name TEXT NOT NULL,
	matrix TEXT NOT NULL,
	started_at DATETIME NOT NULL,
	sha256 TEXT NOT NULL,
	"by" TEXT NOT NULL,
	how TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DATETIME NOT NULL,
	CONSTRAINT ck_deletions_what CHECK ("what" IN ('run', 'duel')),
	CONSTRAINT pk_deletions PRIMARY KEY (id)
);

CREATE TABLE duel_blocks (
	duel_id TEXT NOT NULL,
	cell TEXT NOT NULL,
	way TEXT NOT NULL,
	pairs TEXT NOT NULL,
	CONSTRAINT fk_duel_blocks_duel_id_duels FOREIGN KEY(duel_id) REFERENCES duels (id),
	CONSTRAINT pk_duel_blocks PRIMARY KEY (duel_id, cell, way)
)
 WITHOUT ROWID;

CREATE TABLE duel_cells (
	duel_id TEXT NOT NULL,
	position BIGINT NOT NULL,
	name TEXT NOT NULL,
	a TEXT NOT NULL,
	b TEXT NOT NULL,
	phase TEXT NOT NULL,
	verdict TEXT NOT NULL,
	reason TEXT NOT NULL,
	way TEXT,
	thrown_away BIGINT NOT NULL,
	planted DOUBLE NOT NULL,
	notes TEXT NOT NULL,
	CONSTRAINT ck_duel_cells_phase CHECK ("phase" IN ('prefill', 'chunked', 'varlen', 'decode', 'verify')),
	CONSTRAINT ck_duel_cells_verdict CHECK ("verdict" IN ('SLOWER', 'SAME', 'FASTER', 'AMBIGUOUS', 'INCONCLUSIVE')),
	CONSTRAINT ck_duel_cells_way CHECK ("way" IN ('graph', 'graph_warm', 'eager', 'host')),
	CONSTRAINT fk_duel_cells_duel_id_duels FOREIGN KEY(duel_id) REFERENCES duels (id),
	CONSTRAINT pk_duel_cells PRIMARY KEY (duel_id, position)
)
 WITHOUT ROWID;

CREATE TABLE duel_ratios (
	duel_id TEXT NOT NULL,
	position BIGINT NOT NULL,
	way TEXT NOT NULL,
	verdict TEXT NOT NULL,
	change DOUBLE NOT NULL,
	low DOUBLE NOT NULL,
	high DOUBLE NOT NULL,
	a_us DOUBLE NOT NULL,
	b_us DOUBLE NOT NULL,
	detectable DOUBLE NOT NULL,
	margin DOUBLE NOT NULL,
	pairs BIGINT NOT NULL,
	quads BIGINT NOT NULL,
	CONSTRAINT ck_duel_ratios_verdict CHECK ("verdict" IN ('SLOWER', 'SAME', 'FASTER', 'AMBIGUOUS', 'INCONCLUSIVE')),
	CONSTRAINT fk_duel_ratios_duel_id_duels FOREIGN KEY(duel_id) REFERENCES duels (id),
	CONSTRAINT pk_duel_ratios PRIMARY KEY (duel_id, position, way)
)
 WITHOUT ROWID;

CREATE TABLE duel_seals (
	duel_id TEXT NOT NULL,
	envelope TEXT NOT NULL,
	parts TEXT NOT NULL,
	CONSTRAINT fk_duel_seals_duel_id_duels FOREIGN KEY(duel_id) REFERENCES duels (id),
	CONSTRAINT pk_duel_seals PRIMARY KEY (duel_id)
);

CREATE TABLE duels (
	id TEXT NOT NULL,
	matrix TEXT NOT NULL,
	matrix_hash TEXT NOT NULL,
	"select" TEXT NOT NULL,
	a TEXT NOT NULL,
	b TEXT NOT NULL,
	"null" BOOLEAN NOT NULL,
	device TEXT NOT NULL,
	device_uuid TEXT NOT NULL,
	stack_a_id INTEGER NOT NULL,
	stack_b_id INTEGER NOT NULL,
	started_at DATETIME NOT NULL,
	finished_at DATETIME NOT NULL,
	complete BOOLEAN NOT NULL,
	least_pairs BIGINT NOT NULL, only_a TEXT, only_b TEXT, code TEXT, content TEXT, received_at DATETIME,
	CONSTRAINT fk_duels_stack_a_id_stacks FOREIGN KEY(stack_a_id) REFERENCES stacks (id),
	CONSTRAINT fk_duels_stack_b_id_stacks FOREIGN KEY(stack_b_id) REFERENCES stacks (id),
	CONSTRAINT pk_duels PRIMARY KEY (id)
);

CREATE TABLE findings (
	outcome_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	"check" TEXT NOT NULL,
	verdict TEXT NOT NULL,
	detail TEXT NOT NULL,
	"values" TEXT NOT NULL,
	CONSTRAINT ck_findings_verdict CHECK ("verdict" IN ('pass', 'fail', 'inconclusive', 'note')),
	CONSTRAINT fk_findings_outcome_id_outcomes FOREIGN KEY(outcome_id) REFERENCES outcomes (id),
	CONSTRAINT pk_findings PRIMARY KEY (outcome_id, position)
)
 WITHOUT ROWID;

CREATE TABLE "fires" (
	id INTEGER NOT NULL,
	canary TEXT NOT NULL,
	scheduled_for DATETIME NOT NULL,
	"trigger" TEXT NOT NULL,
	reason TEXT NOT NULL,
	changes TEXT NOT NULL,
	state TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	node TEXT NOT NULL,
	attempts BIGINT NOT NULL,
	next_attempt_at DATETIME NOT NULL,
	created_at DATETIME NOT NULL,
	started_at DATETIME,
	finished_at DATETIME,
	matrix TEXT NOT NULL,
	run_id TEXT,
	variant TEXT NOT NULL,
	verdict TEXT,
	advice TEXT,
	reasons TEXT NOT NULL,
	numerics_only TEXT NOT NULL,
	lease TEXT DEFAULT ('') NOT NULL, rollout TEXT DEFAULT '' NOT NULL, wave BIGINT, duel_id TEXT,
	CONSTRAINT ck_fires_advice CHECK ("advice" IN ('promote', 'hold', 'roll back')),
	CONSTRAINT ck_fires_state CHECK ("state" IN ('pending', 'running', 'completed', 'refused', 'failed')),
	CONSTRAINT ck_fires_trigger CHECK ("trigger" IN ('cron', 'stack', 'manual')),
	CONSTRAINT ck_fires_verdict CHECK ("verdict" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')),
	CONSTRAINT pk_fires PRIMARY KEY (id),
	CONSTRAINT uq_fires_lease_canary_scheduled_for UNIQUE (lease, canary, scheduled_for)
);

CREATE TABLE "fleet_cards" (
	fleet_id TEXT NOT NULL,
	uuid TEXT NOT NULL,
	attempt BIGINT NOT NULL,
	node TEXT NOT NULL,
	name TEXT NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	run_id TEXT,
	verdict TEXT,
	epoch BIGINT NOT NULL,
	CONSTRAINT ck_fleet_cards_state CHECK ("state" IN ('PLANNED', 'COVERED', 'BUSY', 'LOST', 'REFUSED', 'MISSING', 'BAD')),
	CONSTRAINT ck_fleet_cards_verdict CHECK ("verdict" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')),
	CONSTRAINT fk_fleet_cards_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id),
	CONSTRAINT pk_fleet_cards PRIMARY KEY (fleet_id, uuid, attempt)
);

CREATE TABLE fleet_shares (
	fleet_id TEXT NOT NULL,
	number BIGINT NOT NULL,
	node TEXT NOT NULL,
	cells TEXT NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	run_id TEXT,
	verdict TEXT,
	epoch BIGINT NOT NULL,
	CONSTRAINT ck_fleet_shares_state CHECK ("state" IN ('PLANNED', 'COVERED', 'BUSY', 'LOST', 'REFUSED', 'MISSING')),
	CONSTRAINT ck_fleet_shares_verdict CHECK ("verdict" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')),
	CONSTRAINT fk_fleet_shares_fleet_id_fleets FOREIGN KEY(fleet_id) REFERENCES fleets (id),
	CONSTRAINT pk_fleet_shares PRIMARY KEY (fleet_id, number)
);

CREATE TABLE fleets (
	id TEXT NOT NULL,
	matrix TEXT NOT NULL,
	matrix_hash TEXT NOT NULL,
	engine TEXT NOT NULL,
	device TEXT NOT NULL,
	spread TEXT NOT NULL,
	least_coverage DOUBLE NOT NULL,
	state TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	created_at DATETIME NOT NULL,
	finished_at DATETIME,
	notes TEXT NOT NULL, cells TEXT DEFAULT '[]' NOT NULL,
	CONSTRAINT ck_fleets_device CHECK ("device" IN ('cpu', 'cuda')),
	CONSTRAINT ck_fleets_spread CHECK ("spread" IN ('shard', 'repeat')),
	CONSTRAINT ck_fleets_state CHECK ("state" IN ('running', 'ended')),
	CONSTRAINT pk_fleets PRIMARY KEY (id)
);

CREATE TABLE hold_actions (
	id INTEGER NOT NULL,
	hold_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	"by" TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DATETIME NOT NULL, how TEXT DEFAULT '' NOT NULL,
	CONSTRAINT ck_hold_actions_kind CHECK ("kind" IN ('acknowledge', 'release')),
	CONSTRAINT fk_hold_actions_hold_id_holds FOREIGN KEY(hold_id) REFERENCES holds (id),
	CONSTRAINT pk_hold_actions PRIMARY KEY (id)
);

CREATE TABLE holds (
	id INTEGER NOT NULL,
	canary TEXT NOT NULL,
	node TEXT NOT NULL,
	variant TEXT NOT NULL,
	reason TEXT NOT NULL,
	fire_id INTEGER NOT NULL,
	since DATETIME NOT NULL,
	released_at DATETIME,
	released_by INTEGER,
	CONSTRAINT fk_holds_fire_id_fires FOREIGN KEY(fire_id) REFERENCES fires (id),
	CONSTRAINT fk_holds_released_by_fires FOREIGN KEY(released_by) REFERENCES fires (id),
	CONSTRAINT pk_holds PRIMARY KEY (id)
);

CREATE TABLE launches (
	outcome_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	name TEXT NOT NULL,
	count BIGINT NOT NULL,
	role TEXT NOT NULL,
	family TEXT NOT NULL,
	generation TEXT NOT NULL,
	grid_x BIGINT,
	grid_y BIGINT,
	grid_z BIGINT,
	block_x BIGINT,
	block_y BIGINT,
	block_z BIGINT,
	registers BIGINT,
	shared_bytes BIGINT,
	stream BIGINT,
	duration_us DOUBLE NOT NULL,
	CONSTRAINT ck_launches_role CHECK ("role" IN ('attention', 'auxiliary', 'gemm', 'softmax', 'unclassified')),
	CONSTRAINT fk_launches_outcome_id_outcomes FOREIGN KEY(outcome_id) REFERENCES outcomes (id),
	CONSTRAINT pk_launches PRIMARY KEY (outcome_id, position)
)
 WITHOUT ROWID;

CREATE TABLE leases (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	beats BIGINT NOT NULL,
	expires_at DATETIME NOT NULL,
	trouble TEXT NOT NULL, node TEXT DEFAULT '' NOT NULL, looked_at DATETIME,
	CONSTRAINT pk_leases PRIMARY KEY (name)
);

CREATE TABLE matmul_ceilings (
	run_id TEXT NOT NULL,
	dtype TEXT NOT NULL,
	matmul_flops_per_s DOUBLE NOT NULL,
	CONSTRAINT fk_matmul_ceilings_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_matmul_ceilings PRIMARY KEY (run_id, dtype)
);

CREATE TABLE nodes (
	lease TEXT NOT NULL,
	service TEXT NOT NULL,
	node TEXT NOT NULL,
	canaries TEXT NOT NULL,
	stack_key TEXT NOT NULL,
	device TEXT NOT NULL,
	CONSTRAINT pk_nodes PRIMARY KEY (lease)
);

CREATE TABLE outbox (
	id TEXT NOT NULL,
	canary TEXT NOT NULL,
	fire_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	target TEXT NOT NULL,
	body TEXT NOT NULL,
	state TEXT NOT NULL,
	attempts BIGINT NOT NULL,
	created_at DATETIME NOT NULL,
	next_attempt_at DATETIME NOT NULL,
	last_error TEXT NOT NULL,
	CONSTRAINT ck_outbox_kind CHECK ("kind" IN ('promote', 'hold', 'roll back', 'refused', 'failed')),
	CONSTRAINT ck_outbox_state CHECK ("state" IN ('pending', 'sent', 'dead')),
	CONSTRAINT fk_outbox_fire_id_fires FOREIGN KEY(fire_id) REFERENCES fires (id),
	CONSTRAINT pk_outbox PRIMARY KEY (id),
	CONSTRAINT uq_outbox_fire_id_target UNIQUE (fire_id, target)
);

CREATE TABLE outcomes (
	id INTEGER NOT NULL,
	case_key INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	attempt BIGINT,
	"by" TEXT,
	reasons TEXT,
	stage TEXT,
	error TEXT,
	log TEXT,
	limit_s DOUBLE,
	reason TEXT,
	first_call_us DOUBLE,
	peak_temporary_bytes BIGINT,
	wall_s DOUBLE,
	witness_state TEXT,
	witness_reason TEXT,
	witness_expected TEXT,
	witness_calls BIGINT,
	latency_us DOUBLE,
	launches_per_block BIGINT,
	rotated_bytes BIGINT,
	cold BOOLEAN,
	host_us DOUBLE,
	flops BIGINT,
	compulsory_bytes BIGINT,
	exps BIGINT,
	roofline_us DOUBLE,
	bound TEXT,
	ceiling_share DOUBLE, output_digest TEXT, inputs_digest TEXT, device_uuid TEXT, finding_count BIGINT, ended_at DATETIME,
	CONSTRAINT ck_outcomes_bound CHECK ("bound" IN ('flops', 'bytes', 'exps', 'launch')),
	CONSTRAINT ck_outcomes_by CHECK ("by" IN ('plan', 'library')),
	CONSTRAINT ck_outcomes_outcome CHECK ("outcome" IN ('measured', 'refused', 'substituted', 'crashed', 'timed_out', 'not_run')),
	CONSTRAINT ck_outcomes_witness_state CHECK ("witness_state" IN ('proven', 'substituted', 'unproven')),
	CONSTRAINT fk_outcomes_case_key_cases FOREIGN KEY(case_key) REFERENCES cases ("key"),
	CONSTRAINT pk_outcomes PRIMARY KEY (id)
);

CREATE TABLE planted_faults (
	selftest_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	name TEXT NOT NULL,
	kind TEXT NOT NULL,
	mirrors TEXT NOT NULL,
	does TEXT NOT NULL,
	equivalent TEXT NOT NULL,
	detections TEXT NOT NULL,
	CONSTRAINT fk_planted_faults_selftest_id_selftests FOREIGN KEY(selftest_id) REFERENCES selftests (id),
	CONSTRAINT pk_planted_faults PRIMARY KEY (selftest_id, position)
);

CREATE TABLE qualify_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT qualify_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE revocations (
	signoff_id INTEGER NOT NULL,
	"by" TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DATETIME NOT NULL,
	CONSTRAINT fk_revocations_signoff_id_signoffs FOREIGN KEY(signoff_id) REFERENCES signoffs (id),
	CONSTRAINT pk_revocations PRIMARY KEY (signoff_id)
);

CREATE TABLE rollouts (
	lease TEXT NOT NULL,
	canary TEXT NOT NULL,
	"key" TEXT NOT NULL,
	"trigger" TEXT NOT NULL,
	reason TEXT NOT NULL,
	matrix TEXT NOT NULL,
	waves TEXT NOT NULL,
	wave BIGINT NOT NULL,
	state TEXT NOT NULL,
	opened_at DATETIME NOT NULL,
	ended_at DATETIME,
	CONSTRAINT ck_rollouts_state CHECK ("state" IN ('open', 'promote', 'hold', 'roll back')),
	CONSTRAINT ck_rollouts_trigger CHECK ("trigger" IN ('cron', 'stack', 'manual')),
	CONSTRAINT pk_rollouts PRIMARY KEY (lease, canary, "key")
);

CREATE TABLE run_environments (
	run_id TEXT NOT NULL,
	name TEXT NOT NULL,
	python TEXT NOT NULL,
	stack_id INTEGER,
	device_uuid TEXT,
	CONSTRAINT fk_run_environments_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT fk_run_environments_stack_id_stacks FOREIGN KEY(stack_id) REFERENCES stacks (id),
	CONSTRAINT pk_run_environments PRIMARY KEY (run_id, name)
);

CREATE TABLE runs (
	id TEXT NOT NULL,
	matrix TEXT NOT NULL,
	matrix_hash TEXT NOT NULL,
	matrix_source TEXT NOT NULL,
	matrix_path TEXT NOT NULL,
	level TEXT NOT NULL,
	device TEXT NOT NULL,
	"select" TEXT NOT NULL,
	kernel TEXT NOT NULL,
	qualify_version TEXT NOT NULL,
	started_at DATETIME NOT NULL,
	finished_at DATETIME,
	state TEXT NOT NULL,
	stack_id INTEGER,
	device_uuid TEXT, check_version BIGINT DEFAULT '1' NOT NULL, traffic_source TEXT DEFAULT '' NOT NULL, code TEXT, clock_skew_s DOUBLE, terms TEXT, placement TEXT, planned BIGINT, received_at DATETIME,
	CONSTRAINT ck_runs_device CHECK ("device" IN ('cpu', 'cuda')),
	CONSTRAINT ck_runs_level CHECK ("level" IN ('smoke', 'full')),
	CONSTRAINT ck_runs_state CHECK ("state" IN ('running', 'completed', 'interrupted')),
	CONSTRAINT fk_runs_stack_id_stacks FOREIGN KEY(stack_id) REFERENCES stacks (id),
	CONSTRAINT pk_runs PRIMARY KEY (id)
);

CREATE TABLE samples (
	outcome_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	latency_us DOUBLE NOT NULL,
	CONSTRAINT fk_samples_outcome_id_outcomes FOREIGN KEY(outcome_id) REFERENCES outcomes (id),
	CONSTRAINT pk_samples PRIMARY KEY (outcome_id, position)
)
 WITHOUT ROWID;

CREATE TABLE "schedules" (
	canary TEXT NOT NULL,
	cron TEXT NOT NULL,
	since DATETIME NOT NULL,
	lease TEXT DEFAULT ('') NOT NULL, next_at DATETIME,
	CONSTRAINT pk_schedules PRIMARY KEY (lease, canary)
);

CREATE TABLE seals (
	run_id TEXT NOT NULL,
	envelope TEXT NOT NULL,
	parts TEXT NOT NULL,
	CONSTRAINT fk_seals_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_seals PRIMARY KEY (run_id)
);

CREATE TABLE seats (
	lease TEXT NOT NULL,
	canary TEXT NOT NULL,
	stack_key TEXT NOT NULL,
	seat BIGINT NOT NULL,
	node TEXT NOT NULL,
	CONSTRAINT pk_seats PRIMARY KEY (lease, canary, stack_key, seat)
);

CREATE TABLE selftests (
	id INTEGER NOT NULL,
	check_version BIGINT NOT NULL,
	qualify_version TEXT NOT NULL,
	levels TEXT NOT NULL,
	"select" TEXT NOT NULL,
	started_at DATETIME NOT NULL,
	wall_s DOUBLE NOT NULL,
	CONSTRAINT pk_selftests PRIMARY KEY (id)
);

CREATE TABLE signoffs (
	id INTEGER NOT NULL,
	run_id TEXT NOT NULL,
	sha256 TEXT NOT NULL,
	sealed BOOLEAN NOT NULL,
	verdict TEXT NOT NULL,
	"by" TEXT NOT NULL,
	role TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DATETIME NOT NULL, origin TEXT DEFAULT '' NOT NULL, how TEXT DEFAULT '' NOT NULL,
	CONSTRAINT ck_signoffs_verdict CHECK ("verdict" IN ('PASS', 'FAIL', 'WAIVED', 'INCONCLUSIVE', 'NOT_REQUIRED')),
	CONSTRAINT fk_signoffs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),
	CONSTRAINT pk_signoffs PRIMARY KEY (id)
);

CREATE TABLE stack_environment (
	stack_id INTEGER NOT NULL,
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	CONSTRAINT fk_stack_environment_stack_id_stacks FOREIGN KEY(stack_id) REFERENCES stacks (id),
	CONSTRAINT pk_stack_environment PRIMARY KEY (stack_id, name)
);

CREATE TABLE stacks (
	id INTEGER NOT NULL,
	fingerprint TEXT NOT NULL,
	device_kind TEXT NOT NULL,
	device_name TEXT NOT NULL,
	compute_capability TEXT NOT NULL,
	units BIGINT NOT NULL,
	memory_bytes BIGINT NOT NULL,
	cache_bytes BIGINT NOT NULL,
	CONSTRAINT ck_stacks_device_kind CHECK ("device_kind" IN ('cpu', 'cuda')),
	CONSTRAINT pk_stacks PRIMARY KEY (id),
	CONSTRAINT uq_stacks_fingerprint UNIQUE (fingerprint)
);

CREATE TABLE statistics (
	outcome_id INTEGER NOT NULL,
	position BIGINT NOT NULL,
	inputs TEXT NOT NULL,
	seed BIGINT NOT NULL,
	reference TEXT NOT NULL,
	declared_class TEXT NOT NULL,
	measured_class TEXT NOT NULL,
	rows BIGINT NOT NULL,
	"E" DOUBLE NOT NULL,
	"E_without_underflow" DOUBLE NOT NULL,
	"R" DOUBLE NOT NULL,
	"G" DOUBLE NOT NULL,
	beta DOUBLE NOT NULL,
	beta_limit DOUBLE NOT NULL,
	lse_rel DOUBLE,
	lse_base TEXT NOT NULL, "G_limit" DOUBLE DEFAULT '1.6' NOT NULL, worst_sequence BIGINT,
	CONSTRAINT ck_statistics_lse_base CHECK ("lse_base" IN ('e', '2', '')),
	CONSTRAINT fk_statistics_outcome_id_outcomes FOREIGN KEY(outcome_id) REFERENCES outcomes (id),
	CONSTRAINT pk_statistics PRIMARY KEY (outcome_id, position)
)
 WITHOUT ROWID;

CREATE TABLE "watched_stacks" (
	canary TEXT NOT NULL,
	node TEXT NOT NULL,
	fingerprint TEXT NOT NULL,
	stack TEXT NOT NULL,
	seen_at DATETIME NOT NULL,
	changing_to TEXT NOT NULL,
	changing_since DATETIME,
	lease TEXT DEFAULT ('') NOT NULL, changes TEXT,
	CONSTRAINT pk_watched_stacks PRIMARY KEY (lease, canary, node)
);

CREATE INDEX ix_baselines_matrix_variant_id ON baselines (matrix, variant, id);

CREATE INDEX ix_baselines_run_id ON baselines (run_id);

CREATE INDEX ix_cases_case_id ON cases (case_id);

CREATE INDEX ix_comments_case_id ON comments (case_id);

CREATE INDEX ix_comments_run_id ON comments (run_id);

CREATE INDEX ix_deletions_matrix_started_at ON deletions (matrix, started_at);

CREATE INDEX ix_deletions_name ON deletions (name);

CREATE INDEX ix_duels_matrix_started_at ON duels (matrix, started_at);

CREATE INDEX ix_fires_state_next_attempt_at ON fires (state, next_attempt_at);

CREATE INDEX ix_fleet_cards_run_id ON fleet_cards (run_id);

CREATE INDEX ix_fleets_created_at ON fleets (created_at);

CREATE INDEX ix_hold_actions_hold_id ON hold_actions (hold_id);

CREATE INDEX ix_holds_canary_node_variant ON holds (canary, node, variant);

CREATE INDEX ix_outbox_state_next_attempt_at ON outbox (state, next_attempt_at);

CREATE INDEX ix_outcomes_case_key_id ON outcomes (case_key, id);

CREATE INDEX ix_runs_listed ON runs (started_at, id, matrix, state, stack_id);

CREATE INDEX ix_runs_matrix_started_at ON runs (matrix, started_at);

CREATE INDEX ix_runs_started_at ON runs (started_at);

CREATE INDEX ix_selftests_check_version_id ON selftests (check_version, id);

CREATE INDEX ix_signoffs_run_id ON signoffs (run_id);

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'rows of audit are append-only'); END;

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'rows of audit are append-only'); END;

CREATE TRIGGER deletions_no_delete BEFORE DELETE ON deletions BEGIN SELECT RAISE(ABORT, 'rows of deletions are append-only'); END;

CREATE TRIGGER deletions_no_update BEFORE UPDATE ON deletions BEGIN SELECT RAISE(ABORT, 'rows of deletions are append-only'); END;

CREATE TRIGGER duels_deleted AFTER DELETE ON duels WHEN NOT EXISTS (SELECT 1 FROM deletions WHERE name = OLD.id AND "at" > strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 minute')) BEGIN INSERT INTO deletions ("what", "name", "matrix", "started_at", "sha256", "by", "how", "reason", "at") VALUES ('duel', OLD.id, OLD.matrix, OLD.started_at, '', '', 'SQL', '', strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'); END;

CREATE TRIGGER hold_actions_no_delete BEFORE DELETE ON hold_actions BEGIN SELECT RAISE(ABORT, 'rows of hold_actions are append-only'); END;

CREATE TRIGGER hold_actions_no_update BEFORE UPDATE ON hold_actions BEGIN SELECT RAISE(ABORT, 'rows of hold_actions are append-only'); END;

CREATE TRIGGER revocations_no_delete BEFORE DELETE ON revocations BEGIN SELECT RAISE(ABORT, 'rows of revocations are append-only'); END;

CREATE TRIGGER revocations_no_update BEFORE UPDATE ON revocations BEGIN SELECT RAISE(ABORT, 'rows of revocations are append-only'); END;

CREATE TRIGGER runs_deleted AFTER DELETE ON runs WHEN NOT EXISTS (SELECT 1 FROM deletions WHERE name = OLD.id AND "at" > strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 minute')) BEGIN INSERT INTO deletions ("what", "name", "matrix", "started_at", "sha256", "by", "how", "reason", "at") VALUES ('run', OLD.id, OLD.matrix, OLD.started_at, '', '', 'SQL', '', strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'); END;

CREATE TRIGGER signoffs_no_delete BEFORE DELETE ON signoffs BEGIN SELECT RAISE(ABORT, 'rows of signoffs are append-only'); END;

CREATE TRIGGER signoffs_no_update BEFORE UPDATE ON signoffs BEGIN SELECT RAISE(ABORT, 'rows of signoffs are append-only'); END;

INSERT INTO qualify_version VALUES ('0034')
