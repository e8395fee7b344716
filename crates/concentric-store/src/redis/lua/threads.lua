-- Conversations.

local function thread_key(T)
  return base .. ':t:' .. T
end

local function thread_open(T)
  local f = call('HMGET', thread_key(T), 'version', 'session', 'attempt', 'change', 'log', 'len', 'bytes', 'chain',
    'at')
  if not f[1] then
    return nil
  end
  return {version = tonumber(f[1]), session = f[2], attempt = f[3], change = f[4], log = f[5],
    len = tonumber(f[6]), bytes = tonumber(f[7]), chain = f[8], at = f[9] or '0'}
end

-- The end of a conversation, which a run may begin with.
function methods.thread_end()
  local thread = thread_open((take(1)))
  if not thread then
    return {'not_found'}
  end
  return {'ok', thread.len, thread.chain, thread.bytes}
end

-- The end of the first turns of a conversation.
function methods.thread_kept()
  local T, keep = take(2)
  return log_kept(thread_open(T), tonumber(keep))
end

-- A conversation; without its turns if they exceed `max` bytes.
function methods.thread_load()
  local T, max = take(2)
  local thread = thread_open(T)
  if not thread then
    return {'not_found'}
  end
  local entries = {}
  if thread.bytes <= tonumber(max) then
    entries = log_read(thread.log, 0, thread.len)
  end
  local f = call('HMGET', thread_key(T), 'suspended', 'suspended_slots', 'shared')
  return {'ok', thread.version, thread.session, thread.len, thread.bytes, f[1], f[2],
    tonumber(f[3] or nil) or false, call('HGETALL', base .. ':s:' .. T), entries}
end

-- At most `limit` turns of a conversation from position `start` on, or the newest ones, and the checksum of the turns
-- before them; nil if there are none, or the last turn before them is missing.
function methods.thread_turns()
  local T, start, limit = take(3)
  local thread = thread_open(T)
  if not thread then
    return {'not_found'}
  end
  limit = tonumber(limit)
  local lo = math.min(tonumber(start) or math.max(thread.len - limit, 0), thread.len)
  local hi = math.min(lo + limit, thread.len)
  local before, entries = false, {}
  if lo < hi then
    before = log_end(thread.log, lo) or false
    entries = log_read(thread.log, lo, hi)
  end
  return {'ok', thread.version, thread.session, thread.len, before, entries, thread.at}
end

-- At most `limit` conversations with versions below `before`, the newest first.
function methods.thread_list()
  local before, limit = take(2)
  local found = {'ok'}
  -- Those that were written before the index had versions.
  for _, name in ipairs(call('ZRANGEBYSCORE', base .. ':tz', 0, 0)) do
    local thread = thread_open(escape(name))
    call('ZADD', base .. ':tz', text(thread and thread.version or 1), name)
  end
  for _, name in ipairs(call('ZREVRANGEBYSCORE', base .. ':tz', '(' .. before, '-inf', 'LIMIT', 0, limit)) do
    local thread = thread_open(escape(name))
    if thread then
      found[#found + 1] = {name, thread.session, thread.version, thread.len, thread.at}
    else
      call('ZREM', base .. ':tz', name)
    end
  end
  return found
end

-- Appends to a conversation; or, with `to`, to a new one that begins with its first turns. If `ends`, the run of
-- these names ends with it, unless it has no outcome, or another store has it. If its claim is lost, or it was deleted,
-- nothing is appended.
function methods.thread_append()
  local T, to, name, version, attempt, change, session, ends, run_T, run_R, fence, outcome, keep, new_bytes, max,
    clears, suspended, suspended_slots, shared = take(19)
  to, change, session = optional(to), optional(change), optional(session)
  keep = tonumber(keep)
  local slots = take_list()
  local turns = take_turns()
  local target = to or T
  local old = thread_open(target)
  local run = ends == '1' and run_open(run_T, run_R)
  if ends == '1' and not run and run_is_deleted(run_T, run_R) then
    return {'not_found'}
  end
  if run and fence_code(run, tonumber(fence)) == 'stale' then
    return {'stale', 0}
  end
  if run and (run.status ~= 'running' or outcome == '') then
    run = nil
  end
  if old and (old.attempt == attempt or change and old.change == change) then
    if run then
      set_ended(run, outcome)
    end
    return {'ok', old.version}
  end
  local from = old
  if to then
    if old then
      return {'moved_to', old.version}
    end
    from = thread_open(T)
  end
  local found = from and from.version or 0
  if found ~= tonumber(version) then
    return {'moved', found}
  end
  if not from and to then
    return {'not_found'}
  end
  local list = from or {len = 0, bytes = 0, chain = ROOT}
  local rejected, chain, bytes = log_check(list, keep, turns, tonumber(new_bytes), tonumber(max))
  if rejected then
    return {rejected, chain}
  end
  local log
  if not from then
    log = log_new('', 0, 0)
  elseif to then
    log = log_fork(from.log, keep, 16)
  elseif keep < from.len then
    log = log_cut(from.log, keep)
  else
    log = from.log
  end
  local len
  chain, len, bytes = log_append(log, chain, keep, bytes, turns)

  local slots_key = base .. ':s:' .. target
  if to and clears ~= '1' then
    in_parts('HSET', slots_key, call('HGETALL', base .. ':s:' .. T), 2)
  elseif clears == '1' then
    call('UNLINK', slots_key)
  end
  in_parts('HSET', slots_key, slots, 2)

  local new = next_version()
  local key = thread_key(target)
  call('HSET', key, 'version', text(new), 'attempt', attempt, 'log', log, 'len', text(len), 'bytes', text(bytes),
    'chain', chain, 'at', text(now))
  call('ZADD', base .. ':tz', text(new), name)
  if not old then
    call('HSET', key, 'session', session or from and from.session or name)
  end
  if change then
    call('HSET', key, 'change', change)
  else
    call('HDEL', key, 'change')
  end
  suspended = optional(suspended)
  if suspended then
    call('HSET', key, 'suspended', suspended, 'suspended_slots', suspended_slots, 'shared', shared)
  else
    call('HDEL', key, 'suspended', 'suspended_slots', 'shared')
  end
  if old and old.log ~= log then
    log_drop(old.log)
  end
  if run then
    set_ended(run, outcome)
  end
  return {'ok', new}
end

-- Deletes some of what belongs to a conversation, and in the end the conversation. Returns the number of conversations
-- that existed, and whether more may be left.
local function thread_remove(T, name)
  local has_more = false
  local function some(key, most, remove)
    local members = call('SRANDMEMBER', key, most)
    for _, member in ipairs(members) do
      remove(member)
      -- Also if it is in this index only.
      call('SREM', key, member)
    end
    has_more = has_more or #members == most
  end
  some(base .. ':x:' .. T, BATCH, function(R)
    local run = run_open(T, R)
    if run then
      run_delete(run)
    else
      run_unindexed(T, R)
    end
  end)
  some(base .. ':dh:' .. T, 4 * BATCH, decision_remove)
  some(base .. ':vt:' .. T, 4 * BATCH, cache_remove)
  has_more = events_remove_of(T, now) or has_more
  if has_more then
    return 0, true
  end
  local thread = thread_open(T)
  call('ZREM', base .. ':tz', name)
  if not thread then
    return 0, false
  end
  call('UNLINK', thread_key(T), base .. ':s:' .. T)
  log_drop(thread.log)
  return 1, false
end

function methods.thread_delete()
  frees_memory()
  local existed, has_more = thread_remove(take(2))
  return {'ok', existed, has_more and 1 or 0}
end
