-- Runs.

local function run_key(T, R)
  return base .. ':r:' .. T .. ':' .. R
end

-- A run, and whether it is damaged: it lacks fields, which have defaults then, so that the methods that examine many
-- runs go on. It can be listed and removed, but not claimed.
local function run_open(T, R)
  local key = run_key(T, R)
  local f = call('HMGET', key, 'status', 'version', 'fence', 'till', 'takeovers', 'since', 'waited', 'cancel',
    'client', 'log', 'len', 'bytes', 'chain', 'hd', 'rd', 'replied', 'attempt', 'n')
  if not f[1] then
    return nil
  end
  local is_damaged = false
  local function number(at, default)
    local value = tonumber(f[at] or nil)
    is_damaged = is_damaged or not value
    return value or default
  end
  local function bytes(at)
    is_damaged = is_damaged or not f[at]
    return f[at] or ''
  end
  local run = {key = key, T = T, R = R, status = f[1], version = number(2, 0), fence = number(3, 0),
    till = number(4, now), takeovers = number(5, 0), since = tonumber(f[6] or nil), waited = f[7] == '1',
    cancel = f[8] == '1', client = bytes(9), log = bytes(10), len = number(11, 0), bytes = number(12, 0),
    chain = bytes(13), hd = bytes(14), rd = bytes(15), replied = tonumber(f[16] or nil), attempt = f[17],
    n = number(18, 0)}
  if run.status ~= 'running' then
    local is_known = run.status == 'suspended' or run.status == 'ended'
    is_damaged = is_damaged or not is_known or not run.since
    run.since = run.since or run.till
  end
  run.is_damaged = is_damaged
  return run
end

local function place(key, member, score)
  if score then
    call('ZADD', key, text(score), member)
  else
    call('ZREM', key, member)
  end
end

local function lease_indexed(run)
  local member = run.T .. ':' .. run.R
  place(base .. ':l', member, run.status == 'running' and run.till)
  call('ZREM', base .. ':z', member)
end

-- Puts a run into the indexes to which it belongs.
local function run_indexed(run)
  local member = run.T .. ':' .. run.R
  local is_open = run.status ~= 'ended'
  lease_indexed(run)
  place(base .. ':w', member, run.status == 'suspended' and run.since)
  place(base .. ':e', member, not is_open and run.since)
  place(base .. ':o:' .. run.T, run.R, is_open and run.n)
  local client = run.T .. ':' .. run.client
  call(run.status == 'running' and 'SADD' or 'SREM', base .. ':c:' .. client, run.R)
  call('ZADD', base .. ':b:' .. client, text(run.n), run.R)
  local counts = run.waited and is_open and 'SADD' or 'SREM'
  call(counts, base .. ':k', member)
  call(counts, base .. ':k:' .. run.T, run.R)
  call('ZADD', base .. ':x', text(run.n), member)
  call('SADD', base .. ':x:' .. run.T, run.R)
end

-- Removes a run that does not exist from the indexes, except from those by its fields.
local function run_unindexed(T, R)
  local member = T .. ':' .. R
  for _, index in ipairs({':l', ':z', ':w', ':e', ':x'}) do
    call('ZREM', base .. index, member)
  end
  call('ZREM', base .. ':o:' .. T, R)
  call('SREM', base .. ':k', member)
  call('SREM', base .. ':k:' .. T, R)
  call('SREM', base .. ':x:' .. T, R)
end

-- The conversation and the run of an entry in an index.
local function names(member)
  return string.match(member, '^([^:]*):(.*)$')
end

local function is_overdue(run, keep)
  if not keep or run.status == 'ended' then
    return false
  end
  local since = run.status == 'suspended' and run.since or run.till
  return since <= now - keep
end

-- The code that rejects a claim or an amendment based on this version; nil if there is none.
local function claim_code(run, version, keep, max_takeovers)
  if run.is_damaged then
    return 'corrupt'
  end
  if run.status == 'ended' or is_overdue(run, keep) then
    return 'ended'
  end
  if run.status == 'running' and run.till > now then
    return 'taken'
  end
  if run.status == 'running' and run.takeovers >= max_takeovers then
    return 'quarantined'
  end
  if run.version ~= version then
    return 'taken'
  end
end

-- The code that rejects a write with this fence; nil if there is none.
local function fence_code(run, fence)
  if not run then
    return 'not_found'
  end
  if run.fence ~= fence or run.status == 'suspended' then
    return 'stale'
  end
  if run.status == 'ended' then
    return 'ended'
  end
end

-- The outcomes of runs that were not resumed in time, and of those that were withdrawn.
local EXPIRED = '{"Ok":{"aborted":{"reason":{"other":"expired"}}}}'
local WITHDRAWN = '{"Ok":{"aborted":{"reason":"user"}}}'

local function set_ended(run, outcome)
  run.status, run.since = 'ended', now
  call('HSET', run.key, 'status', 'ended', 'version', text(next_version()), 'since', text(now), 'outcome', outcome)
  run_indexed(run)
end

local function add_asked(run, asks)
  for _, asked in ipairs(asks) do
    if call('SADD', base .. ':q:' .. run.T .. ':' .. run.R, asked) == 1 then
      call('ZADD', base .. ':a:' .. run.T .. ':' .. asked, text(run.n), run.R)
    end
  end
end

-- The index of the decisions about a tool that apply to the same calls, by their numbers.
local function decision_index(tool, span, T, R)
  local key = base .. ':dt:' .. escape(tool) .. ':' .. span
  if span ~= 'always' then
    key = key .. ':' .. T
  end
  if span == 'run' then
    key = key .. ':' .. R
  end
  return key
end

local function decision_remove(id)
  local found = call('HMGET', base .. ':d:' .. id, 'tool', 'thread', 'run', 'span')
  call('ZREM', base .. ':dz', id)
  if not found[1] then
    return false
  end
  call('ZREM', decision_index(found[1], found[4], found[2], found[3]), id)
  call('SREM', base .. ':dh:' .. found[2], id)
  call('SREM', base .. ':dr:' .. found[2] .. ':' .. found[3], id)
  call('UNLINK', base .. ':d:' .. id)
  return true
end

-- Deletes a run with its interrupts, effects and decisions.
local function run_remove(run)
  local T, R = run.T, run.R
  local of_run = T .. ':' .. R
  for _, asked in ipairs(call('SMEMBERS', base .. ':q:' .. of_run)) do
    call('ZREM', base .. ':a:' .. T .. ':' .. asked, R)
  end
  for _, effect in ipairs(call('SMEMBERS', base .. ':fr:' .. of_run)) do
    call('UNLINK', base .. ':f:' .. effect)
  end
  for _, id in ipairs(call('SMEMBERS', base .. ':dr:' .. of_run)) do
    decision_remove(id)
  end
  call('UNLINK', base .. ':q:' .. of_run, base .. ':fr:' .. of_run, run.key)
  call('SREM', base .. ':c:' .. T .. ':' .. run.client, R)
  call('ZREM', base .. ':b:' .. T .. ':' .. run.client, R)
  run_unindexed(T, R)
  log_drop(run.log)
end

-- The seconds for which the store remembers that a run was deleted before its end, or within this time after it.
local REMEMBERED = 3600

-- The entry of a deleted run. It has no names, since these are deleted.
local function deleted_name(T, R)
  return redis.sha1hex(T .. ':' .. R)
end

-- Deletes a run with its conversation. It is remembered if its process may still append a turn.
local function run_delete(run)
  if run.status == 'running' or run.since > now - REMEMBERED * 1000000 then
    call('ZADD', base .. ':y', text(now), deleted_name(run.T, run.R))
    call('EXPIRE', base .. ':y', REMEMBERED)
  end
  run_remove(run)
end

-- Whether a run was deleted with its conversation.
local function run_is_deleted(T, R)
  return call('ZSCORE', base .. ':y', deleted_name(T, R))
end

-- The checksum of a run: of the digests of its names, its head and its replies, and of its turns.
local function run_sum(names, hd, rd, chain)
  return redis.sha1hex(names .. hd .. rd .. chain)
end

-- A run with its turns. Without them if the state exceeds `max` bytes.
local function record(run, max)
  local f = call('HMGET', run.key, 'head', 'replies', 'sum', 'outcome')
  local head = f[1] or ''
  local entries = {}
  if not run.is_damaged and run.bytes + #head <= max then
    entries = log_read(run.log, 0, run.len)
  end
  return {'ok', run.R, run.client, run.status, not run.is_damaged and run.version, run.fence, run.till, run.takeovers,
    run.since or false, now, run.len, run.bytes, head, f[2] or '', run.replied or false, f[3] or '', run.hd,
    run.rd, call('SMEMBERS', base .. ':q:' .. run.T .. ':' .. run.R), entries, f[4]}
end

function methods.run_get()
  local T, R, max = take(3)
  local run = run_open(T, R)
  if not run then
    return {'not_found'}
  end
  return record(run, tonumber(max))
end

function methods.run_find()
  local T, max = take(2)
  local newest
  for _, asked in ipairs(take_list()) do
    local raised = base .. ':a:' .. T .. ':' .. asked
    for _, R in ipairs(call('ZREVRANGE', raised, 0, -1)) do
      local run = run_open(T, R)
      if run then
        if not newest or run.n > newest.n then
          newest = run
        end
        break
      end
      call('ZREM', raised, R)
    end
  end
  if not newest then
    return {'not_found'}
  end
  return record(newest, tonumber(max))
end

local function is_live(T, client)
  local index = base .. ':c:' .. T .. ':' .. client
  for _, R in ipairs(call('SMEMBERS', index)) do
    if call('HGET', run_key(T, R), 'status') == 'running' then
      return true
    end
    call('SREM', index, R)
  end
  return false
end

function methods.run_is_live()
  local T, client = take(2)
  return {'ok', is_live(T, client) and 1 or 0}
end

-- A run without its state.
local function summary(run)
  return {run.R, run.client, run.status, not run.is_damaged and run.version, run.fence, run.till, run.takeovers,
    run.since or false, call('HGET', run.key, 'outcome')}
end

-- The live run of a client id, or else the newest one.
function methods.run_of_client()
  local T, client = take(2)
  local of_client = T .. ':' .. client
  for _, R in ipairs(call('SMEMBERS', base .. ':c:' .. of_client)) do
    local run = run_open(T, R)
    if run and run.status == 'running' then
      return {'ok', now, summary(run)}
    end
    call('SREM', base .. ':c:' .. of_client, R)
  end
  while true do
    local R = call('ZREVRANGE', base .. ':b:' .. of_client, 0, 0)[1]
    if not R then
      return {'not_found'}
    end
    local run = run_open(T, R)
    if run then
      return {'ok', now, summary(run)}
    end
    call('ZREM', base .. ':b:' .. of_client, R)
  end
end

function methods.run_list()
  local T, message, limit = take(3)
  message = optional(message)
  local runs = {}
  for _, R in ipairs(call('ZRANGE', base .. ':o:' .. T, 0, -1)) do
    local run = run_open(T, R)
    if not run then
      run_unindexed(T, R)
    elseif run.status == 'ended' then
      run_indexed(run)
    elseif not message or call('HGET', run.key, 'message') == message then
      runs[#runs + 1] = run
    end
  end
  local function order(run)
    if run.status == 'running' then
      return 1, run.till
    end
    return 0, run.n
  end
  table.sort(runs, function(a, b)
    local a_group, a_at = order(a)
    local b_group, b_at = order(b)
    if a_group ~= b_group then
      return a_group < b_group
    end
    if a_at ~= b_at then
      return a_at < b_at
    end
    return a.n < b.n
  end)
  local found = {'ok', now}
  limit = tonumber(limit)
  for _, run in ipairs(runs) do
    -- The caller omits damaged ones.
    if not run.is_damaged then
      limit = limit - 1
    end
    if limit < 0 then
      break
    end
    found[#found + 1] = summary(run)
  end
  return found
end

-- The runs of all conversations that wait, each after its conversation.
function methods.run_waiting()
  local limit = tonumber((take(1)))
  local found = {'ok', now}
  for _, member in ipairs(call('ZRANGE', base .. ':w', 0, -1)) do
    if limit <= 0 then
      break
    end
    local T, R = names(member)
    local run = run_open(T, R)
    if not run then
      run_unindexed(T, R)
    elseif run.status ~= 'suspended' then
      run_indexed(run)
    else
      -- The caller omits damaged ones.
      if not run.is_damaged then
        limit = limit - 1
      end
      found[#found + 1] = T
      found[#found + 1] = summary(run)
    end
  end
  return found
end

-- Begins a run. Its first turns are the `shared` ones of its conversation, whose checksum is `chain`.
function methods.run_begin()
  local T, R, client, attempt, lease, sum_names, shared, chain, head, hd, rd, message = take(12)
  local asks, turns = take_list(), take_turns()
  shared = tonumber(shared)
  local old = run_open(T, R)
  if old then
    return {old.attempt == attempt and 'ok' or 'exists', old.fence}
  end
  if is_live(T, client) then
    return {'live'}
  end
  local till = now + tonumber(lease)
  local answer = unlisted(till)
  if answer then
    return answer
  end
  local origin, bytes = nil, 0
  if shared > 0 then
    local thread = call('HMGET', base .. ':t:' .. T, 'log', 'len', 'chain', 'bytes')
    if tonumber(thread[2] or nil) ~= shared or thread[3] ~= chain then
      return {'moved'}
    end
    origin, bytes = thread[1], tonumber(thread[4])
  else
    chain = ROOT
  end
  if not may_append(turns, chain, bytes) then
    return {'restage'}
  end
  local log = origin and log_fork(origin, shared, 17) or log_new('', 0, 0)
  local len
  chain, len, bytes = log_append(log, chain, shared, bytes, turns)
  local fence = next_version()
  local run = {key = run_key(T, R), T = T, R = R, status = 'running', client = client, n = fence, till = till,
    waited = false}
  call('HSET', run.key, 'status', 'running', 'client', client, 'version', text(fence), 'fence', text(fence),
    'n', text(fence), 'till', text(till), 'takeovers', '0', 'attempt', attempt, 'log', log, 'len', text(len),
    'bytes', text(bytes), 'chain', chain, 'head', head, 'hd', hd, 'replies', '[]', 'rd', rd,
    'sum', run_sum(sum_names, hd, rd, chain))
  message = optional(message)
  if message then
    call('HSET', run.key, 'message', message)
  end
  run_indexed(run)
  add_asked(run, asks)
  return {'ok', fence}
end

-- Claims a run whose record, which has this version, the caller has read. `replies` are empty if there are no new
-- ones. The head and the replies are compared with their digests when they are read.
function methods.run_claim()
  local T, R, version, attempt, lease, keep, max_takeovers, sum_names, replies, rd = take(10)
  local run = run_open(T, R)
  if not run then
    return {'not_found'}
  end
  if run.attempt ~= attempt then
    local code = claim_code(run, tonumber(version), tonumber(keep), tonumber(max_takeovers))
    if code then
      return {code}
    end
    -- A damaged run must not get a new checksum.
    if call('HGET', run.key, 'sum') ~= run_sum(sum_names, run.hd, run.rd, run.chain) then
      return {'mismatch'}
    end
    local till = now + tonumber(lease)
    local answer = unlisted(till)
    if answer then
      return answer
    end
    if run.status == 'running' then
      run.takeovers = run.takeovers + 1
    end
    run.fence, run.till, run.status = next_version(), till, 'running'
    call('HSET', run.key, 'status', 'running', 'version', text(run.fence), 'fence', text(run.fence),
      'till', text(till), 'takeovers', text(run.takeovers), 'attempt', attempt)
    if replies ~= '' then
      run.replied = run.replied or now
      call('HSET', run.key, 'replies', replies, 'rd', rd, 'replied', text(run.replied),
        'sum', run_sum(sum_names, run.hd, rd, run.chain))
    end
    run_indexed(run)
  end
  return {'ok', run.fence, run.till, run.takeovers, run.replied or false, now}
end

-- Ends overdue runs; returns whether more may be left.
local function end_overdue(keep)
  if not keep then
    return false
  end
  local more = false
  for _, index in ipairs({':w', ':l', ':z'}) do
    local members = call('ZRANGEBYSCORE', base .. index, '-inf', text(now - keep), 'LIMIT', 0, BATCH)
    for _, member in ipairs(members) do
      local T, R = names(member)
      local run = run_open(T, R)
      if not run then
        run_unindexed(T, R)
      elseif is_overdue(run, keep) then
        set_ended(run, EXPIRED)
      else
        run_indexed(run)
      end
    end
    more = more or #members == BATCH
  end
  return more
end

-- How many runs that cannot be claimed a call takes out of the index, which bounds its time. The next one finds those
-- after them.
local NOT_CLAIMABLE = 250

-- Abandoned runs that may be claimed, those first whose leases ended first; without a fence if they are damaged.
-- Ends some of the overdue ones.
function methods.run_abandoned()
  local limit, max_takeovers, keep = take(3)
  limit, max_takeovers, keep = tonumber(limit), tonumber(max_takeovers), tonumber(keep)
  end_overdue(keep)
  -- The others are left to the next call, so that this one does not read them all.
  local first = keep and '(' .. text(now - keep) or '-inf'
  local found, count, at, others = {'ok'}, 0, 0, 0
  while count < limit and others < NOT_CLAIMABLE do
    local members = call('ZRANGEBYSCORE', base .. ':l', first, text(now), 'LIMIT', at, 100)
    if #members == 0 then
      break
    end
    for _, member in ipairs(members) do
      local T, R = names(member)
      local run = run_open(T, R)
      others = others + 1
      if not run then
        run_unindexed(T, R)
      elseif run.status ~= 'running' or run.till > now then
        run_indexed(run)
      elseif is_overdue(run, keep) then
        set_ended(run, EXPIRED)
      elseif run.takeovers >= max_takeovers or run.is_damaged then
        -- Until its lease is written again, so that it is not read each time.
        call('ZREM', base .. ':l', member)
        call('ZADD', base .. ':z', text(run.till), member)
        if run.is_damaged then
          found[#found + 1] = {T, R, false, run.till, run.n}
        end
      else
        at, others = at + 1, others - 1
        if count < limit then
          count = count + 1
          found[#found + 1] = {T, R, run.fence, run.till, run.n}
        end
      end
    end
  end
  return found
end

-- Claims those of these runs whose claim has not changed, and returns their numbers and fences.
function methods.run_take()
  local attempt, lease, max_takeovers, keep, count = take(5)
  local till = now + tonumber(lease)
  local taken = {'ok'}
  for at = 1, tonumber(count) do
    local T, R, fence = take(3)
    local run = run_open(T, R)
    if run and run.attempt ~= attempt then
      if run.fence ~= tonumber(fence) or claim_code(run, run.version, tonumber(keep), tonumber(max_takeovers))
        or run.status ~= 'running' then
        run = nil
      else
        run.fence, run.till = next_version(), till
        call('HSET', run.key, 'version', text(run.fence), 'fence', text(run.fence), 'till', text(till),
          'takeovers', text(run.takeovers + 1), 'attempt', attempt)
        lease_indexed(run)
      end
    end
    if run then
      taken[#taken + 1] = {at, run.fence}
    end
  end
  return taken
end

-- Gives up claims of `run_take` whose runs were not read, which then do not count as takeovers.
function methods.run_give_back()
  local answer = unlisted(now)
  if answer then
    return answer
  end
  for _ = 1, tonumber((take(1))) do
    local T, R, fence = take(3)
    local run = run_open(T, R)
    -- A lease that has ended was given back before.
    if run and run.status == 'running' and run.fence == tonumber(fence) and run.till > now then
      run.till = now
      call('HSET', run.key, 'till', text(now), 'takeovers', text(math.max(run.takeovers - 1, 0)))
      lease_indexed(run)
    end
  end
  return {'ok'}
end

-- The code of a limit of waiting runs that is reached.
local function wait_code(T, max_thread, max_tenant)
  if call('SCARD', base .. ':k:' .. T) >= max_thread then
    return 'thread_full'
  end
  if call('SCARD', base .. ':k') >= max_tenant then
    return 'tenant_full'
  end
end

-- The end of the first turns of a run.
function methods.run_kept()
  local T, R, keep = take(3)
  local run = run_open(T, R)
  return log_kept(run and not run.is_damaged and run, tonumber(keep))
end

-- Changes the state of a run: 'save' of one that continues, 'suspend' of one that waits from now on, 'amend' of one
-- with this version that can be claimed.
function methods.run_write()
  local T, R, mode, fence, version, attempt, lease, keep, new_bytes, max, sum_names, head, hd, rd, message,
    max_thread, max_tenant, keep_waiting, max_takeovers = take(19)
  local asks, turns = take_list(), take_turns()
  keep, max_takeovers, keep_waiting = tonumber(keep), tonumber(max_takeovers), tonumber(keep_waiting)
  local run = run_open(T, R)
  if run and run.attempt == attempt then
    return {'ok', run.version}
  end
  local code
  if mode ~= 'amend' then
    code = fence_code(run, tonumber(fence))
  elseif not run then
    code = 'not_found'
  else
    code = claim_code(run, tonumber(version), keep_waiting, max_takeovers)
  end
  if not code and run.is_damaged then
    code = 'corrupt'
  end
  if code then
    return {code, run and run.len or 0}
  end
  -- The head counts towards the limit.
  local rejected, chain, bytes = log_check(run, keep, turns, tonumber(new_bytes), tonumber(max) - #head)
  if rejected then
    return {rejected, rejected == 'too_large' and chain + #head or chain}
  end
  if mode == 'save' then
    run.till = now + tonumber(lease)
    local answer = unlisted(run.till)
    if answer then
      return answer
    end
  end
  if mode == 'suspend' and not run.waited then
    max_thread, max_tenant = tonumber(max_thread), tonumber(max_tenant)
    code = wait_code(T, max_thread, max_tenant)
    if code then
      -- Some may be overdue.
      end_overdue(keep_waiting)
      run = run_open(T, R)
      code = fence_code(run, tonumber(fence)) or wait_code(T, max_thread, max_tenant)
      if code then
        return {code}
      end
    end
  end
  local log = run.log
  if keep < run.len then
    log = log_cut(log, keep)
  end
  local len
  chain, len, bytes = log_append(log, chain, keep, bytes, turns)
  version = next_version()
  if mode == 'amend' then
    rd = run.rd
  end
  call('HSET', run.key, 'version', text(version), 'attempt', attempt, 'log', log, 'len', text(len),
    'bytes', text(bytes), 'chain', chain, 'head', head, 'hd', hd, 'sum', run_sum(sum_names, hd, rd, chain))
  message = optional(message)
  if message then
    call('HSET', run.key, 'message', message)
  else
    call('HDEL', run.key, 'message')
  end
  if mode ~= 'amend' then
    call('HSET', run.key, 'replies', '[]', 'rd', rd, 'takeovers', '0')
    call('HDEL', run.key, 'replied')
  end
  if mode == 'save' then
    call('HSET', run.key, 'till', text(run.till))
    lease_indexed(run)
  elseif mode == 'suspend' then
    run.status, run.since, run.waited = 'suspended', now, true
    call('HSET', run.key, 'status', 'suspended', 'since', text(now), 'waited', '1')
    call('HDEL', run.key, 'cancel')
    run_indexed(run)
  end
  add_asked(run, asks)
  if log ~= run.log then
    log_drop(run.log)
  end
  return {'ok', version}
end

function methods.run_renew()
  local T, R, fence, lease = take(4)
  local run = run_open(T, R)
  local code = fence_code(run, tonumber(fence))
  if code then
    return {code}
  end
  lease = tonumber(lease)
  run.till = now + lease
  local answer = unlisted(run.till)
  if answer then
    return answer
  end
  call('HSET', run.key, 'till', text(run.till))
  if lease == 0 then
    call('HSET', run.key, 'takeovers', '0')
  end
  lease_indexed(run)
  return {run.cancel and 'cancel' or 'held'}
end

function methods.run_cancel()
  local T, R = take(2)
  local run = run_open(T, R)
  if not run or run.status ~= 'running' then
    return {'ok', 0}
  end
  call('HSET', run.key, 'cancel', '1')
  return {'ok', 1}
end

function methods.run_release()
  local T, R, max_takeovers = take(3)
  local run = run_open(T, R)
  if not run or run.status ~= 'running' or run.till > now or run.takeovers < tonumber(max_takeovers) then
    return {'ok', 0}
  end
  local answer = unlisted(run.till)
  if answer then
    return answer
  end
  call('HSET', run.key, 'takeovers', '0')
  lease_indexed(run)
  return {'ok', 1}
end

function methods.run_end()
  frees_memory()
  local T, R, fence, outcome = take(4)
  local run = run_open(T, R)
  local code = fence_code(run, tonumber(fence))
  if code and code ~= 'ended' then
    return {code}
  end
  if not code then
    set_ended(run, outcome)
  end
  return {'ok'}
end

function methods.run_withdraw()
  frees_memory()
  local T = take(1)
  local ended = 0
  for _, R in ipairs(call('ZRANGE', base .. ':o:' .. T, 0, -1)) do
    local run = run_open(T, R)
    if run and run.status == 'suspended' then
      set_ended(run, WITHDRAWN)
      ended = ended + 1
    end
  end
  return {'ok', ended}
end
