-- The methods of quotas, permits and budgets: the arithmetic of `QuotaState`, `PermitState` and `BudgetState` of
-- `concentric-core`. A script of their own, since they are called for each model call.
--
-- KEYS[1] is the first part of all keys: `PREFIX:{q:BUCKET}`, or `PREFIX:{t:TENANT}` for budgets. ARGV[1] is the method,
-- ARGV[3] the time of the caller in microseconds, or empty for that of the server.
--
-- Keys:  base   a quota      :h  the permits of a bucket
--        :lb    budgets      :lo reservations              :ld reservations by the end of their leases
local call = redis.call
local base = KEYS[1]
local cursor = 3
local INF = math.huge

local function take(n)
  local from = cursor + 1
  cursor = cursor + n
  return unpack(ARGV, from, cursor)
end

local function number()
  cursor = cursor + 1
  return tonumber(ARGV[cursor])
end

local function numbers(n)
  local list = {}
  for i = 1, n do
    list[i] = number()
  end
  return list
end

local function text(value)
  return string.format('%.0f', value)
end

local now = tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function load(key)
  local packed = call('GET', key)
  return packed and cmsgpack.unpack(packed)
end

local function save(key, state, till)
  local left = math.ceil((till - now) / 1000)
  if left > 0 then
    call('SET', key, cmsgpack.pack(state), 'PX', text(left))
  else
    call('UNLINK', key)
  end
end

-- Quotas.

local PARTS, LEAST, RECOVERY, BURST, UNITS = 64, 1 / 64, 0.1, 1 / 8, 1e6
local LONGEST_WAIT, SHORT_WAIT, GRACE = 1000000, 10000, 500000
local MAX_WAITING_CALLS, MAX_WAITING, MAX_STEPS = 16, 1000, 256

local quota, state

local function open_quota()
  quota = {per = math.max(number(), 1), limits = numbers(3)}
  for i = 1, 3 do
    if quota.limits[i] < 0 then
      quota.limits[i] = INF
    end
  end
  state = load(base) or {at = 0, parts = {}, closed = 0, rest = {{0, 0}, {0, 0}, {0, 0}, {0, 0}}, turn = 0, turns = {},
    waiting = {}, credit = {0, 0, 0}}
  now = math.max(now, state.at)
  state.at = now
  local parts, waiting = {}, {}
  for _, part in ipairs(state.parts) do
    if part[2] + quota.per > now then
      parts[#parts + 1] = part
    end
  end
  for _, it in ipairs(state.waiting) do
    if it.till > now then
      waiting[#waiting + 1] = it
    end
  end
  state.parts, state.waiting = parts, waiting
end

local function save_quota()
  local till = state.closed
  for _, part in ipairs(state.parts) do
    till = math.max(till, part[2] + quota.per)
  end
  for _, rest in ipairs(state.rest) do
    till = math.max(till, rest[2])
  end
  for _, it in ipairs(state.waiting) do
    till = math.max(till, it.till)
  end
  if state.reduced then
    till = math.max(till, state.reduced[2] + quota.per * 10)
  end
  if state.credited then
    local debt = 0
    for i = 1, 3 do
      if quota.limits[i] > 0 then
        debt = math.max(debt, 1 - state.credit[i] / UNITS / quota.limits[i])
      end
    end
    till = math.max(till, state.credited + math.min(debt, 1e6) * quota.per)
  end
  save(base, state, till)
end

local function share()
  if not state.reduced then
    return 1
  end
  local periods = math.max(now - state.reduced[2], 0) / quota.per
  return math.min(state.reduced[1] / UNITS + periods * RECOVERY, 1)
end

local function refill(caps, is_busy)
  local since = state.credited
  state.credited = now
  for i = 1, 3 do
    if caps[i] < INF then
      local most = (is_busy and caps[i] * BURST or caps[i]) * UNITS
      local added = most
      if since then
        added = caps[i] * UNITS / quota.per * math.max(now - since, 0)
      end
      state.credit[i] = math.floor(math.min(state.credit[i] + added, most))
    end
  end
end

local function need(amounts, caps, bursts)
  local a, b, c = amounts[1], amounts[2], amounts[3]
  return {math.min(a, caps[1]), math.min(b, caps[2]), math.min(c, caps[3]), a, b + c, b, c,
    math.min(a, bursts[1]) * UNITS, math.min(b, bursts[2]) * UNITS, math.min(c, bursts[3]) * UNITS}
end

local NO_CAPS = {INF, INF, INF}

local function left(caps)
  local left = {}
  for i = 1, 3 do
    local sum = 0
    for _, part in ipairs(state.parts) do
      sum = sum + part[3][i]
    end
    left[i] = caps[i] - sum
  end
  for i, rest in ipairs(state.rest) do
    left[3 + i] = rest[2] > now and rest[1] or INF
  end
  for i = 1, 3 do
    left[7 + i] = caps[i] < INF and state.credit[i] or INF
  end
  return left
end

local function start(owner)
  return math.max(state.turns[owner] or state.turn, state.turn)
end

local function add(amounts)
  if amounts[1] == 0 and amounts[2] == 0 and amounts[3] == 0 then
    return
  end
  local needs = need(amounts, NO_CAPS, NO_CAPS)
  for i, rest in ipairs(state.rest) do
    if rest[2] > now then
      rest[1] = rest[1] - needs[3 + i]
    end
  end
  for i = 1, 3 do
    if quota.limits[i] < INF then
      state.credit[i] = state.credit[i] - amounts[i] * UNITS
    end
  end
  local part = state.parts[#state.parts]
  if part and now - part[1] < math.floor(quota.per / PARTS) then
    part[2] = now
    for i = 1, 3 do
      part[3][i] = part[3][i] + amounts[i]
    end
  else
    state.parts[#state.parts + 1] = {now, now, {amounts[1], amounts[2], amounts[3]}}
  end
end

local function wait_for(short, caps)
  local at, freed = state.closed, {0, 0, 0}
  local function is_short()
    return freed[1] < short[1] or freed[2] < short[2] or freed[3] < short[3]
  end
  for _, part in ipairs(state.parts) do
    if not is_short() then
      break
    end
    at = math.max(at, part[2] + quota.per)
    for i = 1, 3 do
      freed[i] = freed[i] + part[3][i]
    end
  end
  -- The rest is what calls take now.
  if is_short() then
    at = math.max(at, now + math.min(quota.per, LONGEST_WAIT))
  end
  for i, rest in ipairs(state.rest) do
    if short[3 + i] > 0 then
      at = math.max(at, rest[2])
    end
  end
  for i = 1, 3 do
    if short[7 + i] > 0 and caps[i] < INF then
      local periods = math.min(short[7 + i] / UNITS / caps[i], 1e6)
      at = math.max(at, now + math.ceil(periods * quota.per))
    end
  end
  return math.min(math.max(at - now, 1000), LONGEST_WAIT)
end

local function end_turns()
  local first = INF
  for _, it in ipairs(state.waiting) do
    first = math.min(first, start(it.owner))
  end
  if first == INF then
    first = state.turn
    for _, till in pairs(state.turns) do
      first = math.max(first, till)
    end
  end
  state.turn = math.max(state.turn, first)
  local turns, n = {}, 0
  for owner, till in pairs(state.turns) do
    if till > state.turn and n < MAX_WAITING then
      turns[owner] = till
      n = n + 1
    end
  end
  state.turns = turns
end

local function cost(amounts)
  local most = 0
  for i = 1, 3 do
    if quota.limits[i] < INF and amounts[i] > 0 then
      most = math.max(most, amounts[i] / quota.limits[i])
    end
  end
  return math.ceil(most * UNITS)
end

local function is_before(one, other)
  if one.done ~= other.done then
    return one.done < other.done
  end
  if one.since ~= other.since then
    return one.since < other.since
  end
  return one.caller < other.caller
end

local methods = {}

function methods.quota_take()
  open_quota()
  local caller = take(1)
  local ahead = numbers(3)
  local caps = {}
  for i = 1, 3 do
    caps[i] = quota.limits[i] * share()
  end
  local entries, own, since, waiting = {}, {}, {}, {}
  local first, is_busy = state.waiting[1] and state.waiting[1].owner, false
  for _, it in ipairs(state.waiting) do
    is_busy = is_busy or it.owner ~= first or it.caller ~= caller
    if it.caller == caller then
      since[it.owner] = since[it.owner] or it.since
    else
      waiting[#waiting + 1] = it
      entries[#entries + 1] = {caller = it.caller, owner = it.owner, since = it.since, calls = it.calls,
        amounts = it.amounts, done = 0}
    end
  end
  state.waiting = waiting
  local others = #entries
  for _ = 1, number() do
    local owner = take(1)
    local calls = {}
    for n = 1, number() do
      calls[n] = numbers(3)
    end
    is_busy = is_busy or first and owner ~= first
    local entry = {caller = caller, owner = owner, since = since[owner] or now, calls = #calls, own = calls, done = 0,
      granted = 0}
    entries[#entries + 1] = entry
    own[#own + 1] = entry
  end
  -- Several processes or owners wait.
  refill(caps, is_busy)
  local bursts = caps
  if is_busy then
    bursts = {caps[1] * BURST, caps[2] * BURST, caps[3] * BURST}
  end
  local starts = {}
  for _, entry in ipairs(entries) do
    starts[entry.owner] = start(entry.owner)
  end

  local left = left(caps)
  local is_closed = state.closed > now
  local is_over = is_closed
  local steps, taken, wait = 0, {0, 0, 0}, nil
  while steps < MAX_STEPS do
    local entry
    for _, it in ipairs(entries) do
      if it.done < it.calls then
        local at = starts[it.owner]
        local best = entry and starts[entry.owner]
        -- Of one owner, the processes are served in turns, in the same order whichever of them asks.
        if not entry or at < best or at == best and is_before(it, entry) then
          entry = it
        end
      end
    end
    if not entry then
      break
    end
    local amounts = entry.own and entry.own[entry.done + 1] or entry.amounts
    local needs = need(amounts, caps, bursts)
    for i = 1, 10 do
      is_over = is_over or left[i] < needs[i]
    end
    for i = 1, 3 do
      is_over = is_over or amounts[i] > 0 and quota.limits[i] <= 0
    end
    if entry.own and is_over then
      local short = {}
      for i = 1, 10 do
        short[i] = needs[i] - left[i]
      end
      wait = wait_for(short, caps)
      break
    end
    local used = is_over and needs or need(amounts, NO_CAPS, NO_CAPS)
    for i = 1, 10 do
      left[i] = left[i] - used[i]
    end
    local cost = cost(amounts)
    if entry.own then
      entry.granted = entry.granted + 1
      for i = 1, 3 do
        taken[i] = taken[i] + amounts[i]
      end
      if cost > 0 then
        state.turns[entry.owner] = start(entry.owner) + cost
      end
    else
      steps = steps + 1
    end
    entry.done = entry.done + 1
    starts[entry.owner] = starts[entry.owner] + cost
  end
  local is_waiting = false
  for _, entry in ipairs(own) do
    is_waiting = is_waiting or entry.done < entry.calls
  end
  wait = is_waiting and (wait or is_over and LONGEST_WAIT or SHORT_WAIT) or 0
  local wants_ahead = ahead[1] > 0 or ahead[2] > 0 or ahead[3] > 0
  local has_ahead = wants_ahead and others == 0 and not is_waiting and not is_closed
  local needs = need(ahead, NO_CAPS, NO_CAPS)
  for i = 1, 10 do
    has_ahead = has_ahead and left[i] >= needs[i]
  end
  if has_ahead then
    for i = 1, 3 do
      taken[i] = taken[i] + ahead[i]
    end
  end
  for _, entry in ipairs(own) do
    if entry.done < entry.calls and #state.waiting < MAX_WAITING then
      local calls, amounts = math.min(entry.calls - entry.done, MAX_WAITING_CALLS), {0, 0, 0}
      for n = 1, calls do
        for i = 1, 3 do
          amounts[i] = amounts[i] + entry.own[entry.done + n][i]
        end
      end
      for i = 1, 3 do
        amounts[i] = math.ceil(amounts[i] / calls)
      end
      state.waiting[#state.waiting + 1] = {caller = caller, owner = entry.owner, calls = calls, amounts = amounts,
        since = entry.done > 0 and now or entry.since, till = now + wait + GRACE}
    end
  end
  add(taken)
  end_turns()
  save_quota()
  local answer = {'ok', has_ahead and 1 or 0, wait}
  for _, entry in ipairs(own) do
    answer[#answer + 1] = entry.granted
  end
  return answer
end

local changes = {}

function changes.unused()
  local amounts, began = numbers(3), nil
  began = math.max(now - number(), 0)
  for n = #state.parts, 1, -1 do
    local part = state.parts[n]
    if part[1] <= began then
      for i = 1, 3 do
        part[3][i] = math.max(part[3][i] - math.max(amounts[i], 0), 0)
        state.credit[i] = state.credit[i] + math.max(amounts[i], 0) * UNITS
      end
      break
    end
  end
  add({math.max(-amounts[1], 0), math.max(-amounts[2], 0), math.max(-amounts[3], 0)})
end

function changes.rejected()
  local after, began = number(), nil
  began = math.max(now - number(), 0)
  state.closed = math.max(state.closed, now + after)
  if not state.reduced or began >= state.reduced[2] then
    state.reduced = {math.floor(math.max(share() / 2, LEAST) * UNITS), now}
  end
end

function changes.remaining()
  for i = 1, 4 do
    local is_known, rest, reset = take(3)
    if is_known == '1' then
      state.rest[i] = {tonumber(rest), now + tonumber(reset)}
    end
  end
end

function methods.quota_record()
  open_quota()
  for _ = 1, number() do
    changes[take(1)]()
  end
  save_quota()
  return {'ok'}
end

-- Permits.

local function level(max, wants)
  table.sort(wants)
  local rest, others = max, #wants
  for _, want in ipairs(wants) do
    local share = math.floor(rest / others)
    if want > share then
      return share, rest - share * others
    end
    rest = rest - want
    others = others - 1
  end
  return max, 0
end

-- In microseconds.
local TURN = 1000000

-- More callers than permits have them in turn.
local function has_turn(max, index, count)
  local turn = math.floor(now / TURN) % 65536 * 40503 % 65536
  local first = math.floor(turn * count / 65536)
  return (index + count - first) % count < max
end

function methods.permits_hold()
  local caller = take(1)
  local request, max, used, wanted, lease = unpack(numbers(5))
  local known = load(base .. ':h') or {}
  local own = known[caller]
  if own and own.till > now and own.request > request then
    -- A later request has arrived before.
    return {'ok', 0}
  end
  local holders, wants, held, till = {}, {wanted}, 0, 0
  for name, it in pairs(known) do
    if it.till > now and name ~= caller then
      holders[name] = it
      wants[#wants + 1] = it.wanted
      held = held + it.held
      till = math.max(till, it.till)
    end
  end
  local share, rest = level(max, wants)
  local before, count = 0, 1
  for name, it in pairs(holders) do
    if it.wanted > share then
      count = count + 1
      before = before + (name < caller and 1 or 0)
    end
  end
  if share > 0 then
    share = share + (before < rest and 1 or 0)
  elseif has_turn(max, before, count) then
    share = 1
  end
  local allowed = math.min(wanted, share, math.max(max - held, 0))
  -- Also if it wants none: an earlier request may arrive later.
  holders[caller] = {held = math.max(allowed, used), wanted = wanted, till = now + lease, request = request}
  save(base .. ':h', holders, math.max(till, now + lease))
  return {'ok', allowed}
end

-- Budgets. Amounts are lists, in the order of DIMENSIONS.

local MOST = 9007199254740992
local CORRECTED, SETTLED = 3600 * 1000000, 60 * 1000000
-- The time after which no window counts that is the current one now, and a day more, since a clock may step back.
local PAST = {hour = 26 * 3600 * 1000000, day = 49 * 3600 * 1000000, month = 32 * 86400 * 1000000}
-- At most these many reservations are charged at once, which bounds the time.
local BATCH = 500
local dimensions

local function open_budgets()
  dimensions = number()
end

local function slot_of(window, offset)
  local minutes = math.floor(now / 60000000)
  if window == 'always' then
    return 0
  elseif window == 'hour' then
    return minutes
  end
  local day = math.floor((minutes + offset) / 1440)
  if window == 'day' then
    return day
  end
  local days = day + 719468
  local era = math.floor(days / 146097)
  local of_era = days - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524) - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  return (era * 400 + year - 1970) * 12 + math.floor((5 * of_year + 2) / 153) + 2
end

local function plus(a, b)
  local sum = {}
  for i = 1, dimensions do
    sum[i] = math.min((a[i] or 0) + (b[i] or 0), MOST)
  end
  return sum
end

local function minus(a, b)
  local difference = {}
  for i = 1, dimensions do
    difference[i] = math.max((a[i] or 0) - (b[i] or 0), 0)
  end
  return difference
end

-- The slots of a budget: a map from the text of a slot to {spent, reserved, extended}.
local function slots_of(key)
  local packed = call('HGET', base .. ':lb', key)
  return packed and cmsgpack.unpack(packed) or {}
end

local function save_slots(key, slots)
  if next(slots) then
    call('HSET', base .. ':lb', key, cmsgpack.pack(slots))
  else
    call('HDEL', base .. ':lb', key)
  end
end

-- A reservation: {amounts, charged, key, slot, key, slot, ..}.
local function charge(reservation, actual)
  for n = 3, #reservation, 2 do
    local slots = slots_of(reservation[n])
    local slot = slots[reservation[n + 1]]
    if slot then
      if reservation[2] then
        slot[1] = minus(slot[1], reservation[1])
      else
        slot[2] = minus(slot[2], reservation[1])
      end
      slot[1] = plus(slot[1], actual)
      save_slots(reservation[n], slots)
    end
  end
end

local function remove(id)
  call('HDEL', base .. ':lo', id)
  call('ZREM', base .. ':ld', id)
end

local function expire()
  for _ = 1, 2 do
    local ended = call('ZRANGEBYSCORE', base .. ':ld', '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, BATCH)
    for n = 1, #ended, 2 do
      local id = ended[n]
      local packed = call('HGET', base .. ':lo', id)
      local reservation = packed and cmsgpack.unpack(packed)
      if reservation and not reservation[2] then
        charge(reservation, reservation[1])
        reservation[2] = true
        call('HSET', base .. ':lo', id, cmsgpack.pack(reservation))
        call('ZADD', base .. ':ld', text(tonumber(ended[n + 1]) + CORRECTED), id)
      else
        remove(id)
      end
    end
    if #ended == 0 then
      break
    end
  end
  -- Budgets that nobody has used since their windows ended.
  local over = call('ZRANGEBYSCORE', base .. ':le', '-inf', text(now), 'LIMIT', 0, BATCH)
  for _, key in ipairs(over) do
    call('HDEL', base .. ':lb', key)
    call('ZREM', base .. ':le', key)
  end
end

-- The next budget of the arguments, without the slots that do not count any more.
local function budget()
  local key, window, offset = take(2)
  offset = number()
  local current = slot_of(window, offset)
  local slots = slots_of(key)
  local sums = {{}, {}, {}}
  for name, slot in pairs(slots) do
    local at = tonumber(name)
    if at >= (window == 'hour' and current - 60 or current) then
      for i = 1, 3 do
        sums[i] = plus(sums[i], slot[i])
      end
    else
      slots[name] = nil
    end
  end
  return {key = key, at = text(current), window = window, slots = slots, sums = sums}
end

local function current(it)
  if PAST[it.window] then
    call('ZADD', base .. ':le', text(now + PAST[it.window]), it.key)
  end
  it.slots[it.at] = it.slots[it.at] or {{}, {}, {}}
  return it.slots[it.at]
end

function methods.budget_reserve()
  open_budgets()
  expire()
  local id, lease = take(1)
  lease = number()
  local amounts = numbers(dimensions)
  if call('HEXISTS', base .. ':lo', id) == 1 then
    return {'ok'}
  end
  local budgets = {}
  for n = 1, number() do
    local it = budget()
    budgets[n] = it
    local used = plus(it.sums[1], it.sums[2])
    for i = 1, dimensions do
      local limit = number()
      if limit >= 0 and amounts[i] > 0 then
        limit = math.min(limit + (it.sums[3][i] or 0), MOST)
        if used[i] + amounts[i] > limit then
          return {'over', n - 1, i - 1, text(limit), text(used[i]), text(amounts[i])}
        end
      end
    end
  end
  local reservation, seen = {amounts, false}, {}
  for _, it in ipairs(budgets) do
    -- A budget may be named twice.
    it.slots = seen[it.key] or it.slots
    seen[it.key] = it.slots
    local slot = current(it)
    slot[2] = plus(slot[2], amounts)
    save_slots(it.key, it.slots)
    reservation[#reservation + 1] = it.key
    reservation[#reservation + 1] = it.at
  end
  call('HSET', base .. ':lo', id, cmsgpack.pack(reservation))
  call('ZADD', base .. ':ld', text(now + lease), id)
  return {'ok'}
end

function methods.budget_settle()
  open_budgets()
  expire()
  local id = take(1)
  local packed = call('HGET', base .. ':lo', id)
  local reservation = packed and cmsgpack.unpack(packed)
  if reservation and not (reservation[2] and #reservation == 2) then
    charge(reservation, numbers(dimensions))
    remove(id)
  else
    -- The request to reserve may arrive later.
    call('HSET', base .. ':lo', id, cmsgpack.pack({{}, true}))
    call('ZADD', base .. ':ld', text(now + SETTLED), id)
  end
  return {'ok'}
end

function methods.budget_extend()
  open_budgets()
  expire()
  local it = budget()
  local slot = current(it)
  slot[3] = plus(slot[3], numbers(dimensions))
  save_slots(it.key, it.slots)
  return {'ok'}
end

function methods.budget_spent()
  open_budgets()
  expire()
  local it = budget()
  local answer = {'ok'}
  for n = 1, 2 do
    for i = 1, dimensions do
      answer[#answer + 1] = text(it.sums[n][i] or 0)
    end
  end
  return answer
end

return methods[ARGV[1]]()
